r"""The signed frame: what is verified are the very bytes that were sent.

    sparkd/1 <HMAC-SHA256 in hex>\n{"v":"1.1","kind":…,"cluster":…,"from":…,"instance":…,"seq":…,"body":…}

The MAC is taken over the major version, the *context* (an MQTT topic, or the line of an HTTP request) and
the JSON text as it stands. A message that is moved to another topic, or an answer given to another
question, therefore fails. Nothing is parsed before the MAC holds; nothing is serialised again to verify it.

Versions: another major version is refused. A newer minor version of the same major may carry keys that
this one does not know: they are ignored; in any other message an unknown key is an error.
"""

from __future__ import annotations

import hmac
import json
import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from sparkd.wire.fields import INSTANCE, NAME, integer
from sparkd.wire.refusal import Refusal, WireError
from sparkd.wire.topics import Kind

MAJOR = 1
MINOR = 1
SIZE_MAX = 64 * 1024
DEPTH_MAX = 12
SEQ_MAX = (1 << 53) - 1

_HEADER = re.compile(rb"sparkd/([1-9]\d{0,3}) ([0-9a-f]{64})\n")
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})")
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NOT_BRACKETS = bytes(c for c in range(256) if c not in b"[]{}")
_KEYS = frozenset({"v", "kind", "cluster", "from", "instance", "seq", "body"})
_SEQ = integer(1, SEQ_MAX)


@dataclass(frozen=True, slots=True)
class Envelope:
    """A verified message. `lenient`: a newer minor version wrote it, unknown keys in `body` are ignored."""

    kind: str
    cluster: str
    sender: str
    instance: str
    seq: int
    body: Any
    lenient: bool = False


def mac(key: bytes, context: str, payload: bytes) -> str:
    """Return the MAC in hex of *payload* said in *context*."""
    signed = b"sparkd/%d\0%s\0%s" % (MAJOR, context.encode("utf-8", "surrogatepass"), payload)
    return hmac.new(key, signed, sha256).hexdigest()


def seal(key: bytes, context: str, envelope: Envelope) -> bytes:
    """Return the frame of *envelope*. Raises WireError where it is too large to be sent."""
    content = {
        "v": f"{MAJOR}.{MINOR}",
        "kind": envelope.kind,
        "cluster": envelope.cluster,
        "from": envelope.sender,
        "instance": envelope.instance,
        "seq": envelope.seq,
        "body": envelope.body,
    }
    payload = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    frame = b"sparkd/%d %s\n%s" % (MAJOR, mac(key, context, payload).encode(), payload)
    if len(frame) > SIZE_MAX:
        raise WireError(Refusal.TOO_LARGE, f"{len(frame)} bytes, at most {SIZE_MAX} are allowed")
    return frame


def unseal(key: bytes, context: str, frame: bytes) -> Envelope:
    """Return the verified content of *frame*, said in *context*. Raises WireError."""
    payload = _verified(key, context, frame)
    content = _parse(payload)
    if type(content) is not dict:
        raise WireError(Refusal.WRONG_TYPE, "an object is expected")
    lenient = _newer(content.get("v"))
    unknown = content.keys() - _KEYS
    if unknown and not lenient:
        raise WireError(Refusal.UNKNOWN_KEY, "unknown key", where=min(unknown)[:64])
    if len(content) - len(unknown) < len(_KEYS):
        raise WireError(Refusal.MISSING_KEY, "must be there", where=min(_KEYS - content.keys()))
    return _envelope(content, lenient)


def _envelope(content: dict[str, Any], lenient: bool) -> Envelope:
    kind = content["kind"]
    if kind not in Kind.__members__.values():
        raise WireError(Refusal.WRONG_KIND, "no kind of message", where="kind")
    checks = {"cluster": NAME, "from": NAME, "instance": INSTANCE, "seq": _SEQ}
    for name, field in checks.items():
        try:
            field.decode(content[name], lenient)
        except WireError as refused:
            raise refused.within(name) from None
    sender, instance = content["from"], content["instance"]
    return Envelope(kind, content["cluster"], sender, instance, content["seq"], content["body"], lenient)


def _verified(key: bytes, context: str, frame: bytes) -> bytes:
    if len(frame) > SIZE_MAX:
        raise WireError(Refusal.TOO_LARGE, f"{len(frame)} bytes, at most {SIZE_MAX} are allowed")
    header = _HEADER.match(frame)
    if header is None:
        raise WireError(Refusal.NOT_SIGNED, "no header of a signed message")
    if int(header[1]) != MAJOR:
        theirs = int(header[1])
        raise WireError(Refusal.UNKNOWN_VERSION, f"version {theirs} is said, this sparkd speaks {MAJOR}")
    payload = frame[header.end() :]
    if not hmac.compare_digest(mac(key, context, payload).encode(), header[2]):
        raise WireError(Refusal.BAD_MAC, "another cluster key, another topic, or altered")
    return payload


def _newer(version: Any) -> bool:
    found = _VERSION.fullmatch(version) if isinstance(version, str) else None
    if found is None or int(found[1]) != MAJOR:
        raise WireError(Refusal.UNKNOWN_VERSION, f"this sparkd speaks {MAJOR}.{MINOR}", where="v")
    return int(found[2]) > MINOR


def _depth(payload: bytes) -> int:
    """Return how deep the brackets outside strings are nested."""
    depth = deepest = 0
    for bracket in _STRINGS.sub(b"", payload).translate(None, _NOT_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _parse(payload: bytes) -> Any:
    few = payload.count(b"[") + payload.count(b"{") <= DEPTH_MAX
    if not few and _depth(payload) > DEPTH_MAX:
        raise WireError(Refusal.TOO_DEEP, f"nested deeper than {DEPTH_MAX}")
    try:
        return json.loads(payload.decode(), object_pairs_hook=_object, parse_constant=_constant)
    except UnicodeDecodeError:
        raise WireError(Refusal.NOT_UTF8, "not UTF-8") from None
    except json.JSONDecodeError as error:
        raise WireError(Refusal.NOT_JSON, f"not JSON at character {error.pos}") from None
    except ValueError:  # an integer of more digits than Python converts
        raise WireError(Refusal.OUT_OF_RANGE, "a number has too many digits") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise WireError(Refusal.DUPLICATE_KEY, "a key stands twice in one object")
    return found


def _constant(name: str) -> Any:
    raise WireError(Refusal.NOT_FINITE, f"{name} is not allowed")
