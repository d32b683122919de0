"""What a unit's end says by itself."""

from __future__ import annotations

from collections.abc import Sequence

from sparkd.signals.model import Proof, Signal, UnitExit
from sparkd.words import UnitName

# Linux's numbers of the signals that end a process; the same on every machine that sparkd runs on.
_SIGKILL, _SIGTERM = 9, 15
_SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    13: "SIGPIPE",
    15: "SIGTERM",
}
_CRASHES = frozenset({4, 6, 7, 8, 11})


def exit_signals(exits: Sequence[UnitExit]) -> list[Signal]:
    """Return what unordered ends say by themselves; an exit code alone says nothing."""
    found = []
    for end in exits:
        cause, proof = _exit_cause(end)
        if cause is None:
            continue
        found.append(
            Signal(
                id=f"exit_{end.unit.value}",
                cause=cause,
                proof=proof,
                node=end.node,
                source=f"exit of {end.unit.value}",
                quote=f"{end.unit.value} on {end.node} {how(end)}",
                at_s=end.at_s,
                generation=end.generation,
                fatal=True,
            )
        )
    return found


def how(end: UnitExit) -> str:
    """Return how a unit ended, in words."""
    number = end.signal if end.signal is not None else _signal_of(end.code)
    if number is not None:
        return f"was killed with {_SIGNALS.get(number, f'signal {number}')}"
    if end.code is not None:
        return f"ended with code {end.code} without being asked"
    return "ended in an unknown way"


def was_killed(end: UnitExit) -> bool:
    """Return whether the unit's root process was killed or crashed, so that it could say nothing any more."""
    number = end.signal if end.signal is not None else _signal_of(end.code)
    return number == _SIGKILL or number in _CRASHES


def _exit_cause(end: UnitExit) -> tuple[str | None, Proof]:
    number = end.signal if end.signal is not None else _signal_of(end.code)
    if end.unit is UnitName.RAY:
        return ("clean_shutdown" if number == _SIGTERM else "ray_node_died"), Proof.PROVES
    if number == _SIGKILL:
        return "killed_unspecified", Proof.PROVES
    if number in _CRASHES:
        return "worker_process_died", Proof.PROVES
    if number == _SIGTERM:
        return "clean_shutdown", Proof.SUGGESTS
    return None, Proof.NOISE


def _signal_of(code: int | None) -> int | None:
    """Return the signal number that a shell's exit code stands for (137 = 128 + SIGKILL)."""
    return code - 128 if code is not None and 128 < code < 160 else None
