"""How far a peer's clock is from this node's, as two bounds that need no trust in any delay.

What the peer sent at T (its clock) was received at t (ours): ours is ahead by at most t - T. What this node
sent at s was received there at R, as the peer's telemetry repeats: ours is ahead by at least s - R. The truth
lies between the tightest of each, however long messages waited; with them every second the bounds are as far
apart as the two quickest deliveries took together. A bound loosens by what clocks drift. Two bounds that
contradict each other say that a clock stood still (a suspended node): then only what was said now counts.

So a peer's evidence is placed by when it was said, not by when it came: a message that waited moves nothing.
A peer that was suspended is placed too early until the first exchange after it, a second or two.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from sparkd.core.messages import Echo, Report, Telemetry
from sparkd.signals.model import Signal
from sparkd.signals.precedence import TIE_S

DRIFT = 1e-3
"""Seconds a second by which two monotonic clocks part at most: the kernel slews either by at most 500 ppm
(MAXFREQ of Linux' timex.h), and a crystal is off by a fifth of that."""
UNMEASURED_S = TIE_S
"""By how much a time is taken to be wrong that was placed by its receipt alone, of a peer that sends no
stamps or was not exchanged with yet: as long as a tie, many times a delivery in a local network."""
_NEVER_S = float("inf")


class Offset(NamedTuple):
    """By how much this node's clock is ahead of a peer's, seconds: at least `low_s`, at most `high_s`.

    `at_s`: when that was so, on this node's clock.
    """

    low_s: float = -_NEVER_S
    high_s: float = _NEVER_S
    at_s: float = 0.0

    @property
    def middle_s(self) -> float:
        """The estimate; only meant where it is measured."""
        return (self.low_s + self.high_s) / 2

    @property
    def error_s(self) -> float:
        """By how much the estimate may be wrong; infinite where it is not measured."""
        return (self.high_s - self.low_s) / 2


UNKNOWN = Offset()


def heard(known: Offset, sent_s: float, now: float, echo: Echo | None = None) -> Offset:
    """Return what is known with a message that the peer sent at *sent_s* and this node received *now*.

    *echo*: what it repeats of this node's own.
    """
    high_s = now - sent_s
    # How long ago the peer received it is not known here; at most since it was sent.
    low_s = echo.sent_s - echo.received_s - DRIFT * max(0.0, now - echo.sent_s) if echo else -_NEVER_S
    loosened_s = DRIFT * max(0.0, now - known.at_s)
    low = max(known.low_s - loosened_s, low_s)
    high = min(known.high_s + loosened_s, high_s)
    if low > high:
        # An echo may be of before a clock stood still; what was received now is not.
        low, high = (low_s if low_s <= high_s else -_NEVER_S), high_s
    return Offset(low, high, now)


def of_telemetry(known: Offset, telemetry: Telemetry, instance: str, now: float) -> Offset:
    """Return what is known with *telemetry*, received *now* by this node's *instance*."""
    if telemetry.sent_s is None:
        return known
    for echo in telemetry.echoes:
        if echo.instance == instance:
            return heard(known, telemetry.sent_s, now, echo)
    return heard(known, telemetry.sent_s, now)


def of_report(known: Offset, report: Report) -> Offset:
    """Return what is known with *report*."""
    if report.sent_s is None or report.received_s is None:
        return known
    return heard(known, report.sent_s, report.received_s)


def placed(offset: Offset, report: Report, signal: Signal) -> Signal:
    """Return *signal* of *report* where it happened on this node's clock, with its error.

    *offset* knows the report, so that the wait of it that is taken off is never below zero.
    """
    if report.sent_s is None or report.received_s is None or offset.error_s == _NEVER_S:
        return replace(signal, error_s=UNMEASURED_S)
    waited_s = report.received_s - report.sent_s - offset.middle_s
    error_s = offset.error_s + DRIFT * (report.received_s - signal.at_s)
    return replace(signal, at_s=signal.at_s - waited_s, error_s=error_s)


def pair_error_s(signals: tuple[Signal, ...]) -> float:
    """Return by how much the times of two of *signals*, of different nodes, may be wrong against each other.

    Either node's reader may have polled a tie later, and both were placed: the two worst nodes count.
    """
    worst: dict[str, float] = {}
    for signal in signals:
        worst[signal.writer] = max(worst.get(signal.writer, 0.0), signal.error_s)
    return TIE_S + sum(sorted(worst.values())[-2:])
