"""Why a message is dropped: one snake_case code for each kind of drop, usable as a metric's label."""

from __future__ import annotations

from enum import StrEnum


class Refusal(StrEnum):
    """The reasons, in the order in which they are checked."""

    UNKNOWN_TOPIC = "unknown_topic"
    TOO_LARGE = "too_large"
    NOT_SIGNED = "not_signed"
    UNKNOWN_VERSION = "unknown_version"
    BAD_MAC = "bad_mac"
    NOT_UTF8 = "not_utf8"
    TOO_DEEP = "too_deep"
    NOT_JSON = "not_json"
    NOT_FINITE = "not_finite"
    OUT_OF_RANGE = "out_of_range"
    DUPLICATE_KEY = "duplicate_key"
    UNKNOWN_KEY = "unknown_key"
    MISSING_KEY = "missing_key"
    WRONG_TYPE = "wrong_type"
    TOO_LONG = "too_long"
    BAD_NAME = "bad_name"
    BAD_TEXT = "bad_text"
    UNKNOWN_VALUE = "unknown_value"
    WRONG_CLUSTER = "wrong_cluster"
    WRONG_KIND = "wrong_kind"
    WRONG_NODE = "wrong_node"
    UNKNOWN_NODE = "unknown_node"
    REPLAY = "replay"


class WireError(Exception):
    """A message was refused; tells the reason, where in the message, and who sent it.

    Attributes:
        reason: the code.
        where: the place in the message ("body.units.2.state"), empty where it is all of it.
        detail: a human phrase about what is wrong there.
        sender: the node that signed it; empty as long as the signature is not proved.
    """

    def __init__(self, reason: Refusal, detail: str = "", where: str = "", sender: str = "") -> None:
        super().__init__(reason, detail, where, sender)
        self.reason = reason
        self.detail = detail
        self.where = where
        self.sender = sender

    def within(self, name: str | int) -> WireError:
        """Return the same refusal as seen from outside the part called *name*."""
        where = f"{name}.{self.where}" if self.where else str(name)
        return WireError(self.reason, self.detail, where, self.sender)

    def by(self, sender: str) -> WireError:
        """Return the same refusal with the proved *sender*."""
        return WireError(self.reason, self.detail, self.where, sender)

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        return f"{self.reason}{place}: {self.detail}" if self.detail else f"{self.reason}{place}"
