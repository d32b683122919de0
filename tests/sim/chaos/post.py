"""Messages on their way: in most worlds as values, in some as the real wire's signed bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sparkd.core import events as ev
from sparkd.core.messages import IncidentNotice, Intent, MemberStatus, Report, Telemetry
from sparkd.wire.codec import Decoder, Encoder
from sparkd.wire.refusal import Refusal, WireError
from sparkd.wire.shapes import Will
from sparkd.wire.topics import Kind

KEY = b"0123456789abcdef0123456789abcdef"
CLUSTER = "chaos"
KINDS = {
    MemberStatus: Kind.STATUS,
    Intent: Kind.INTENT,
    Report: Kind.REPORT,
    Telemetry: Kind.TELEMETRY,
    Will: Kind.WILL,
    IncidentNotice: Kind.INCIDENT,
}
LEVELS = (Kind.STATUS, Kind.INTENT)
CONTEXT = "answer"


@dataclass(slots=True, eq=False)
class Letter:
    """One message as it was said; `payload` where it passes the codec."""

    kind: Kind
    node: str
    instance: str
    seq: int
    message: Any
    said_s: float
    topic: str = ""
    payload: bytes = b""

    @property
    def place(self) -> str:
        """Where a broker retains it."""
        return "intent" if self.kind is Kind.INTENT else f"status {self.node}"


class PostRefusedError(Exception):
    """The real wire refused what the real core said: a defect."""


class Post:
    """One daemon's mouth and ears: numbers what it says, refuses what it has heard already."""

    __slots__ = ("_decoder", "_encoder", "_instance", "_last", "_node", "_said")

    def __init__(self, node: str, instance: str, names: tuple[str, ...], *, codec: bool) -> None:
        self._node, self._instance = node, instance
        self._said: dict[Kind, int] = {}
        self._last: dict[tuple[str, str], int] = {}
        self._encoder = Encoder(KEY, CLUSTER, node, instance) if codec else None
        self._decoder = Decoder(KEY, CLUSTER, names) if codec else None

    def seal(self, message: Any, now: float, world_s: float) -> Letter:
        """Return *message* as a letter."""
        kind = KINDS[type(message)]
        seq = self._said[kind] = self._said.get(kind, 0) + 1
        if isinstance(message, Report):
            message = _aged(replace(message, sent_s=now), now)
        letter = Letter(kind, self._node, self._instance, seq, message, world_s)
        if self._encoder is not None:
            try:
                sealed = self._encoder.encode(_unaged(message, now), now)
            except WireError as refused:
                raise PostRefusedError(f"saying: {refused}") from refused
            letter.topic, letter.payload = sealed.topic, sealed.payload
        return letter

    def open(self, letter: Letter, now: float) -> Any:
        """Return the message, None where it was heard already."""
        if self._decoder is not None:
            try:
                return self._decoder.decode(letter.topic, letter.payload, now).message
            except WireError as refused:
                if refused.reason is Refusal.REPLAY:
                    return None
                raise PostRefusedError(f"hearing: {refused}") from refused
        who = letter.instance, letter.kind
        if letter.seq <= self._last.get(who, 0):
            return None
        self._last[who] = letter.seq
        return _unaged(letter.message, now)

    def answer(self, message: Any, now: float) -> Any:
        """Return what this daemon says over HTTP, as it travels."""
        message = _aged(replace(message, sent_s=now), now) if isinstance(message, Report) else message
        if self._encoder is None:
            return message
        try:
            return self._encoder.frame(CONTEXT, _unaged(message, now), now)
        except WireError as refused:
            raise PostRefusedError(f"answering: {refused}") from refused

    def hear(self, said: Any, kind: Kind, node: str, now: float) -> Any:
        """Return the answer of *node* as it is understood here."""
        if self._decoder is None:
            return _unaged(said, now)
        try:
            return self._decoder.answer(CONTEXT, said, kind, node, now)
        except WireError as refused:
            raise PostRefusedError(f"hearing an answer: {refused}") from refused


def _aged(report: Report, now: float) -> Report:
    return replace(report, signals=tuple(replace(s, at_s=now - s.at_s) for s in report.signals))


def _unaged(message: Any, now: float) -> Any:
    return replace(_aged(message, now), received_s=now) if isinstance(message, Report) else message


def event_of(message: Any, *, retained: bool) -> ev.Event:
    """Return the event of a received message."""
    match message:
        case MemberStatus():
            return ev.StatusReceived(message, ev.Path.MQTT, retained)
        case Telemetry():
            return ev.TelemetryReceived(message)
        case Intent():
            return ev.IntentReceived(message, retained)
        case Report():
            return ev.ReportReceived(message, ev.Path.MQTT)
        case _:
            return ev.WillReceived(message.node, message.instance)
