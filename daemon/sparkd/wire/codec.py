"""Messages to signed frames and back. Both sides keep only counters; time is an argument.

Sequence numbers run per sender instance and kind, from 1. A receiver keeps the last of each and refuses
what is not newer (`replay`), so that a recorded message can never be said again to it.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from sparkd.core.messages import IncidentNotice, Intent, MemberStatus, Report, Telemetry
from sparkd.signals.model import Signal
from sparkd.wire import shapes
from sparkd.wire.common import COUNT_MAX
from sparkd.wire.envelope import Envelope, seal, unseal
from sparkd.wire.fields import Field
from sparkd.wire.names import is_instance, is_name
from sparkd.wire.refusal import Refusal, WireError
from sparkd.wire.shapes import Will
from sparkd.wire.topics import READ, RETAINED, Kind, Topics

Message = MemberStatus | Intent | Report | Telemetry | Will
Said = Message | IncidentNotice
"""What is said; an incident's turns are for people and automations, and no daemon reads them."""

KEY_BYTES_MIN = 16
INSTANCES_MAX = 64
PART_BYTES_MAX = 48 * 1024  # of the signals in one report: below the frame's limit, JSON's escapes included

_KINDS: dict[type[Any], Kind] = {
    MemberStatus: Kind.STATUS,
    Intent: Kind.INTENT,
    Report: Kind.REPORT,
    Telemetry: Kind.TELEMETRY,
    IncidentNotice: Kind.INCIDENT,
    Will: Kind.WILL,
}
_BODIES: dict[Kind, Field] = {
    Kind.STATUS: shapes.STATUS,
    Kind.INTENT: shapes.INTENT,
    Kind.REPORT: shapes.REPORT,
    Kind.TELEMETRY: shapes.TELEMETRY,
    Kind.INCIDENT: shapes.INCIDENT,
    Kind.WILL: shapes.WILL,
}


def kind_of(message: Said) -> Kind:
    """Return the kind of *message*."""
    return _KINDS[type(message)]


@dataclass(frozen=True, slots=True)
class Sealed:
    """A message ready to be published."""

    topic: str
    payload: bytes
    retain: bool


@dataclass(frozen=True, slots=True)
class Received:
    """A message that was verified and validated."""

    kind: Kind
    node: str
    instance: str
    seq: int
    message: Message


def split(report: Report) -> Iterator[Report]:
    """Yield *report* in parts that fit into one frame each; at least one part."""
    start, size = 0, 0
    for index, signal in enumerate(report.signals):
        grown = size + _size(signal)
        if index - start >= shapes.SIGNALS_MAX or (grown > PART_BYTES_MAX and index > start):
            yield _part(report, start, index)
            start, grown = index, _size(signal)
        size = grown
    yield _part(report, start, len(report.signals))


def _part(report: Report, start: int, end: int) -> Report:
    return replace(report, first_seq=report.first_seq + start, signals=report.signals[start:end])


def _size(signal: Signal) -> int:
    """Return the bytes that *signal* takes as JSON, its age reckoned with all digits."""
    said = shapes.SIGNAL.encode(_sayable(signal, 0.0))
    return len(json.dumps(said, ensure_ascii=False).encode()) + 24


class Encoder:
    """Signs what one daemon says, and numbers it."""

    def __init__(self, key: bytes, cluster: str, node: str, instance: str) -> None:
        """Take the cluster key, and the names under which everything is said.

        Raises:
            ValueError: a name or the key is unusable.
        """
        _check_identity(key, cluster, node, instance)
        self._key = key
        self._topics = Topics(cluster)
        self._node = node
        self._instance = instance
        self._seqs: dict[Kind, int] = {}

    def encode(self, message: Said, now: float) -> Sealed:
        """Return *message* signed for its own topic; *now* = monotonic seconds, for the ages in a report.

        Raises:
            WireError: a value is outside its bounds, or the message is too large (see `split`).
        """
        kind = kind_of(message)
        topic = self._topics.of(kind, self._node)
        return Sealed(topic, self.frame(topic, message, now), retain=kind in RETAINED)

    def said(self, kind: Kind) -> int:
        """Return how many messages of *kind* have been signed so far."""
        return self._seqs.get(kind, 0)

    def frame(self, context: str, message: Said, now: float) -> bytes:
        """Return *message* signed for *context*; for paths other than MQTT."""
        kind = kind_of(message)
        sent = _aged(message, now) if isinstance(message, Report) else message
        try:
            body = _BODIES[kind].encode(sent)
        except WireError as refused:
            raise refused.within("body").by(self._node) from None
        seq = self._seqs.get(kind, 0) + 1
        envelope = Envelope(kind, self._topics.cluster, self._node, self._instance, seq, body)
        frame = seal(self._key, context, envelope)
        self._seqs[kind] = seq
        return frame


class Decoder:
    """Verifies and validates what is received; remembers the last number of every sender instance."""

    def __init__(self, key: bytes, cluster: str, nodes: tuple[str, ...]) -> None:
        """Take the cluster key, the cluster's name and the configured *nodes*: nobody else is heard.

        Raises:
            ValueError: a name or the key is unusable.
        """
        for node in nodes:
            _check_identity(key, cluster, node, "x")
        self._key = key
        self._topics = Topics(cluster)
        self._nodes = nodes
        self._last: OrderedDict[tuple[str, str], dict[Kind, int]] = OrderedDict()

    def decode(self, topic: str, payload: bytes, now: float) -> Received:
        """Return the message that *payload* is on *topic*; *now* = monotonic seconds of receipt.

        Raises:
            WireError: it was refused, with the reason.
        """
        found = self._topics.parse(topic)
        if found is None:
            raise WireError(Refusal.UNKNOWN_TOPIC, "not a topic of this cluster")
        kind, node = found
        if kind not in READ:
            raise WireError(Refusal.UNKNOWN_TOPIC, "not a topic that daemons read")
        envelope = unseal(self._key, topic, payload)
        try:
            self._admit(envelope, kind, node)
            message = _message(kind, envelope, now)
            self._advance(envelope, kind)
        except WireError as refused:
            raise refused.by(envelope.sender if envelope.sender in self._nodes else "") from None
        return Received(kind, envelope.sender, envelope.instance, envelope.seq, message)

    def answer(self, context: str, payload: bytes, kind: Kind, node: str, now: float) -> Message:
        """Return the message of *kind* that *node* said in *context*; freshness is in the context.

        Raises:
            WireError: it was refused, with the reason.
        """
        envelope = unseal(self._key, context, payload)
        self._admit(envelope, kind, node)
        return _message(kind, envelope, now)

    def _admit(self, envelope: Envelope, kind: Kind, node: str | None) -> None:
        if envelope.cluster != self._topics.cluster:
            raise WireError(Refusal.WRONG_CLUSTER, "said by another cluster")
        if envelope.kind != kind:
            raise WireError(Refusal.WRONG_KIND, f"not a {kind}")
        if node is not None and envelope.sender != node:
            raise WireError(Refusal.WRONG_NODE, f"not said by {node}")
        if envelope.sender not in self._nodes:
            raise WireError(Refusal.UNKNOWN_NODE, "said by a node that is not configured")

    def _advance(self, envelope: Envelope, kind: Kind) -> None:
        who = (envelope.sender, envelope.instance)
        last = self._last.setdefault(who, {})
        if envelope.seq <= last.get(kind, 0):
            raise WireError(Refusal.REPLAY, f"number {envelope.seq}, {last[kind]} was seen")
        last[kind] = envelope.seq
        self._last.move_to_end(who)
        if len(self._last) > INSTANCES_MAX * len(self._nodes):
            self._last.popitem(last=False)


def _check_identity(key: bytes, cluster: str, node: str, instance: str) -> None:
    if len(key) < KEY_BYTES_MIN:
        raise ValueError(f"the cluster key has {len(key)} bytes, at least {KEY_BYTES_MIN} are needed")
    if not is_name(cluster) or not is_name(node) or not is_instance(instance):
        raise ValueError(f"not a usable name: cluster {cluster!r}, node {node!r}, instance {instance!r}")


def _message(kind: Kind, envelope: Envelope, now: float) -> Message:
    try:
        body = _BODIES[kind].decode(envelope.body, envelope.lenient)
    except WireError as refused:
        raise refused.within("body") from None
    node, instance = envelope.sender, envelope.instance
    match kind:
        case Kind.STATUS:
            return MemberStatus(node=node, instance=instance, **body)
        case Kind.INTENT:
            return Intent(node=node, coordinator=instance, **body)
        case Kind.REPORT:
            signals = tuple(replace(s, at_s=now - s.at_s) for s in body["signals"])
            return Report(node, instance, body["first_seq"], signals, body.get("sent_s"), now)
        case Kind.TELEMETRY:
            return Telemetry(node=node, instance=instance, **body)
        case _:
            return Will(node, instance, body["connection"])


def _aged(report: Report, now: float) -> Report:
    """Return *report* with ages instead of times, and since when they are reckoned."""
    return replace(report, sent_s=now, signals=tuple(_sayable(s, now - s.at_s) for s in report.signals))


def _sayable(signal: Signal, age_s: float) -> Signal:
    """Return *signal* with its age, and without numbers that cannot be said: evidence must not be held up."""
    quantities = (q for q in signal.quantities if abs(q.value) <= shapes.VALUE_MAX)  # NaN is not
    rank = signal.rank
    return replace(
        signal,
        at_s=min(max(age_s, 0.0), shapes.AGE_MAX_S) if isfinite(age_s) else shapes.AGE_MAX_S,
        generation=min(max(signal.generation, 0), COUNT_MAX),
        rank=rank if rank is not None and 0 <= rank <= shapes.RANK_MAX else None,
        quantities=tuple(quantities)[: shapes.QUANTITIES_MAX],
    )
