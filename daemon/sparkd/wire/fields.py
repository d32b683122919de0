"""Fields: how one value goes on the wire and comes back, checked both ways.

A `Field` is a pair of functions. What comes in is refused unless its type, its bounds and its length are
right (`WireError` says where). What goes out is checked by the same bounds, except free text: that is
cleaned and shortened, so that an odd log line can never keep evidence from being sent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from typing import Any

from sparkd.wire.names import INSTANCE_PATTERN, NAME_PATTERN
from sparkd.wire.refusal import Refusal, WireError

# Control characters other than newline and tab (a quote may be a record of many lines), and lone surrogates.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Field:
    """One value's codec.

    Attributes:
        encode: makes of a value what is sent.
        decode: makes a value of (what came, lenient); lenient = unknown keys inside are ignored, not refused.
        parts: the names of the parts of an object.
    """

    encode: Callable[[Any], Any]
    decode: Callable[[Any, bool], Any]
    parts: frozenset[str] = frozenset()


def _same(check: Callable[[Any, bool], Any]) -> Field:
    return Field(lambda value: check(value, False), check)


def integer(low: int, high: int) -> Field:
    """Return the field of an integer between *low* and *high*, both included."""

    def check(value: Any, _lenient: bool) -> int:
        if type(value) is not int:
            raise WireError(Refusal.WRONG_TYPE, "an integer is expected")
        if not low <= value <= high:
            raise WireError(Refusal.OUT_OF_RANGE, f"{low} to {high} is allowed")
        return value

    return _same(check)


def number(low: float, high: float) -> Field:
    """Return the field of a finite number between *low* and *high*, both included."""

    def check(value: Any, _lenient: bool) -> float:
        if type(value) is not float and type(value) is not int:
            raise WireError(Refusal.WRONG_TYPE, "a number is expected")
        if type(value) is float and not math.isfinite(value):
            raise WireError(Refusal.NOT_FINITE, "a finite number is expected")
        if not low <= value <= high:
            raise WireError(Refusal.OUT_OF_RANGE, f"{low} to {high} is allowed")
        return float(value)

    return _same(check)


def flag() -> Field:
    """Return the field of a boolean."""

    def check(value: Any, _lenient: bool) -> bool:
        if type(value) is not bool:
            raise WireError(Refusal.WRONG_TYPE, "true or false is expected")
        return value

    return _same(check)


def _string(value: Any, longest: int) -> str:
    if not isinstance(value, str):
        raise WireError(Refusal.WRONG_TYPE, "a string is expected")
    if len(value) > longest:
        raise WireError(Refusal.TOO_LONG, f"at most {longest} characters are allowed")
    return value


def matching(pattern: str, longest: int) -> Field:
    """Return the field of a string that is all of *pattern*."""
    compiled = re.compile(pattern)

    def check(value: Any, _lenient: bool) -> str:
        if compiled.fullmatch(_string(value, longest)) is None:
            raise WireError(Refusal.BAD_NAME, "not an allowed name")
        return str(value)

    return _same(check)


def text(longest: int) -> Field:
    """Return the field of free text; outgoing text is cleaned and shortened to *longest* characters."""

    def encode(value: str) -> str:
        return _UNPRINTABLE.sub("\ufffd", value[:longest])

    def decode(value: Any, _lenient: bool) -> str:
        if not _string(value, longest).isprintable() and _UNPRINTABLE.search(value):
            raise WireError(Refusal.BAD_TEXT, "control characters are not allowed")
        return str(value)

    return Field(encode, decode)


def choice(kinds: type[StrEnum]) -> Field:
    """Return the field of one of an enumeration's values."""
    members = {str(member): member for member in kinds}

    def decode(value: Any, _lenient: bool) -> StrEnum:
        found = members.get(_string(value, 64))
        if found is None:
            raise WireError(Refusal.UNKNOWN_VALUE, f"not one of {', '.join(members)}")
        return found

    return Field(str, decode)


def optional(inner: Field) -> Field:
    """Return the field of an *inner* or None."""
    return Field(
        lambda value: None if value is None else inner.encode(value),
        lambda value, lenient: None if value is None else inner.decode(value, lenient),
    )


def _each(values: Any, convert: Callable[[Any], Any]) -> list[Any]:
    done: list[Any] = []
    for value in values:
        try:
            done.append(convert(value))
        except WireError as refused:
            raise refused.within(len(done)) from None
    return done


def array(inner: Field, longest: int) -> Field:
    """Return the field of a tuple of at most *longest* values."""

    def encode(values: tuple[Any, ...]) -> list[Any]:
        if len(values) > longest:
            raise WireError(Refusal.TOO_LONG, f"at most {longest} entries are allowed")
        return _each(values, inner.encode)

    def decode(values: Any, lenient: bool) -> tuple[Any, ...]:
        if type(values) is not list:
            raise WireError(Refusal.WRONG_TYPE, "a list is expected")
        if len(values) > longest:
            raise WireError(Refusal.TOO_LONG, f"at most {longest} entries are allowed")
        return tuple(_each(values, lambda value: inner.decode(value, lenient)))

    return Field(encode, decode)


def pair(first: Field, second: Field) -> Field:
    """Return the field of a pair, a list of two on the wire."""

    def encode(value: tuple[Any, Any]) -> list[Any]:
        return [first.encode(value[0]), second.encode(value[1])]

    def decode(value: Any, lenient: bool) -> tuple[Any, Any]:
        if type(value) is not list or len(value) != 2:
            raise WireError(Refusal.WRONG_TYPE, "a list of two is expected")
        return (first.decode(value[0], lenient), second.decode(value[1], lenient))

    return Field(encode, decode)


def _empty_defaults(made: type[Any]) -> dict[str, Any]:
    """Return the defaults that mean "nothing" (None, "", (), 0, False): these need not be sent.

    Any other default is always sent: two versions of sparkd may have different ones.
    """
    return {f.name: f.default for f in fields(made) if f.default is not MISSING and not f.default}


def _members(parts: dict[str, Field], value: dict[str, Any], lenient: bool) -> dict[str, Any]:
    done: dict[str, Any] = {}
    for name, item in value.items():
        part = parts.get(name)
        if part is None:
            if lenient:
                continue
            raise WireError(Refusal.UNKNOWN_KEY, "unknown key", where=name[:64])
        try:
            done[name] = part.decode(item, lenient)
        except WireError as refused:
            raise refused.within(name) from None
    return done


def shape(made: type[Any], parts: dict[str, Field], given: frozenset[str] = frozenset()) -> Field:
    """Return the field of the dataclass *made*: an object with *parts*; its *given* fields travel elsewhere.

    Empty values are not sent. A part that a later minor version adds must therefore have an empty default.
    """
    empty = _empty_defaults(made)
    required = frozenset(parts.keys() - empty.keys())

    def encode(value: Any) -> dict[str, Any]:
        done: dict[str, Any] = {}
        for name, part in parts.items():
            item = getattr(value, name)
            if name in empty and item == empty[name]:
                continue
            try:
                done[name] = part.encode(item)
            except WireError as refused:
                raise refused.within(name) from None
        return done

    def decode(value: Any, lenient: bool) -> Any:
        if type(value) is not dict:
            raise WireError(Refusal.WRONG_TYPE, "an object is expected")
        done = _members(parts, value, lenient)
        missing = required - done.keys()
        if missing:
            raise WireError(Refusal.MISSING_KEY, "must be there", where=min(missing))
        return done if given else made(**done)

    return Field(encode, decode, frozenset(parts))


NAME = matching(NAME_PATTERN, 63)
INSTANCE = matching(INSTANCE_PATTERN, 64)
