"""The bodies of the messages as tables: one line for each field, with its bounds.

Who says it (`node`, `instance`) stands in the signed envelope and nowhere else, so that it cannot differ.
There is no field for argv, environment or paths, and none may be added.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkd.core.messages import (
    Echo,
    GuardSeen,
    IncidentNotice,
    Intent,
    MemberStatus,
    Report,
    Telemetry,
    UnitState,
    UnitStatus,
)
from sparkd.signals.model import Proof, Quantity, Signal
from sparkd.wire.common import BYTES, COUNT, COUNT_MAX, DIGEST, SETTINGS, STAMP
from sparkd.wire.fields import (
    INSTANCE,
    NAME,
    array,
    choice,
    flag,
    integer,
    matching,
    number,
    optional,
    pair,
    shape,
    text,
)
from sparkd.words import Phase, UnitName

NODES_MAX = 64
UNITS_MAX = 16
SIGNALS_MAX = 64
QUANTITIES_MAX = 24
QUOTE_MAX = 1000
AGE_MAX_S = 30 * 86400.0
CLOCK_MAX_S = 1e10  # of a monotonic clock: uptimes of centuries
VALUE_MAX = 1e18
RANK_MAX = 65535

POSITIVE = integer(1, COUNT_MAX)
PERCENT = optional(number(0.0, 100.0))
EXIT_CODE = optional(integer(-(1 << 31), (1 << 32) - 1))
EXIT_SIGNAL = optional(integer(0, 255))
LABEL = text(64)
CLOCK = number(0.0, CLOCK_MAX_S)
SENTENCE = optional(text(500))


@dataclass(frozen=True, slots=True)
class Will:
    """The last will of one connection: the broker publishes it when that connection breaks.

    Attributes:
        node, instance: whose connection it was.
        connection: its number; grows with every connection of one instance.
    """

    node: str
    instance: str
    connection: int


UNIT = shape(
    UnitStatus,
    {
        "unit": choice(UnitName),
        "generation": COUNT,
        "state": choice(UnitState),
        "code": EXIT_CODE,
        "signal": EXIT_SIGNAL,
        "ordered": flag(),
        "reason": SENTENCE,
        "by_hand": flag(),
    },
)
QUANTITY = shape(Quantity, {"name": LABEL, "value": number(-VALUE_MAX, VALUE_MAX)})
# `at_s` of a signal travels as its age: `codec` translates it with the sender's and the receiver's own clock.
# How well it is known (`error_s`) is the receiver's to say.
SIGNAL = shape(
    Signal,
    {
        "id": LABEL,
        "cause": LABEL,
        "proof": choice(Proof),
        "node": LABEL,
        "source": text(200),
        "file": text(200),
        "quote": text(QUOTE_MAX),
        "at_s": number(0.0, AGE_MAX_S),
        "generation": COUNT,
        "fatal": flag(),
        "rank": optional(integer(0, RANK_MAX)),
        "phase": optional(choice(Phase)),
        "printed": optional(LABEL),
        "reader": LABEL,
        "quantities": array(QUANTITY, QUANTITIES_MAX),
    },
)

NOTES_MAX = 16
GUARD = shape(
    GuardSeen,
    {
        "alive": flag(),
        "enforcing": flag(),
        "floor_bytes": BYTES,
        "leased": flag(),
        "trips": COUNT,
        "notes": array(text(300), NOTES_MAX),
        "rivals": array(text(300), NOTES_MAX),
        "reason": text(300),
    },
)

SENDER = frozenset({"node", "instance"})
INTENT = shape(
    Intent,
    {
        "stamp": STAMP,
        "seq": COUNT,
        "addressees": array(pair(NAME, INSTANCE), NODES_MAX),
        "wanted": array(pair(NAME, array(choice(UnitName), UNITS_MAX)), NODES_MAX),
        "settings": SETTINGS,
        "shared_digest": DIGEST,
        "node_digests": array(pair(NAME, DIGEST), NODES_MAX),
        "phase": choice(Phase),
        "grace_s": number(0.0, 3600.0),
    },
    given=frozenset({"coordinator", "node"}),
)
STATUS = shape(
    MemberStatus,
    {
        "seen": STAMP,
        "heard": array(pair(NAME, INSTANCE), NODES_MAX),
        "intent_seq": COUNT,
        "intent_coordinator": matching(r"[A-Za-z0-9_-]*", 64),
        "refused": SENTENCE,
        "units": array(UNIT, UNITS_MAX),
        "swept": flag(),
        "emptied_generation": COUNT,
        "fenced_generation": COUNT,
        "unreleased_generation": COUNT,
        "drained_generation": COUNT,
        "report_seq": COUNT,
        "shared_digest": DIGEST,
        "node_digest": DIGEST,
        "ready": optional(flag()),
        "not_ready": SENTENCE,
        "leaving": flag(),
        "unclean_generation": COUNT,
        "leaking": flag(),
        "available_bytes": BYTES,
        "total_bytes": BYTES,
        "baseline_bytes": BYTES,
        "lowest_bytes": BYTES,
        "pressure_percent": PERCENT,
        "guard": optional(GUARD),
        "version": LABEL,
    },
    given=SENDER,
)
REPORT = shape(
    Report,
    {"first_seq": POSITIVE, "signals": array(SIGNAL, SIGNALS_MAX), "sent_s": optional(CLOCK)},
    given=SENDER | {"received_s"},
)
ECHO = shape(Echo, {"instance": INSTANCE, "sent_s": CLOCK, "received_s": CLOCK})
TELEMETRY = shape(
    Telemetry,
    {
        "phase": choice(Phase),
        "generation": COUNT,
        "available_bytes": BYTES,
        "total_bytes": BYTES,
        "pressure_percent": PERCENT,
        "done": optional(COUNT),
        "total": optional(COUNT),
        "floor_bytes": BYTES,
        "guarded": flag(),
        "sent_s": optional(CLOCK),
        "echoes": array(ECHO, NODES_MAX),
    },
    given=SENDER,
)
INCIDENT = shape(
    IncidentNotice,
    {
        "incident": COUNT,
        "generation": COUNT,
        "state": LABEL,
        "cause": LABEL,
        "text": text(QUOTE_MAX),
        "action": text(QUOTE_MAX),
        "needs": text(QUOTE_MAX),
    },
    given=SENDER,
)
WILL = shape(Will, {"connection": POSITIVE}, given=SENDER)
