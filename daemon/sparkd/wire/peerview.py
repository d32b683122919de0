"""The peer's HTTP view: requests, and what is signed of them. Used by both ends.

A request carries a MAC over the method, the target with its query, and the node that is asked: a stranger
gets nothing, and a request recorded on the way to one node is none for another. The answer is signed in
the context of that very request; its nonce was drawn by the caller, so an old answer is no answer.
"""

from __future__ import annotations

import hmac
import re

from sparkd.wire.envelope import mac

MAC_HEADER = "X-Sparkd-Mac"
STATUS_PATH = "/peer/status"
REPORTS_PATH = "/peer/reports"
NONCE_PATTERN = r"[0-9a-f]{32}"

_NONCE = re.compile(NONCE_PATTERN)
_FROM = re.compile(r"[0-9]{1,15}")


def status_target(nonce: str) -> str:
    """Return the target that asks for the status; *nonce* = 32 hex digits, never used before."""
    return f"{STATUS_PATH}?nonce={nonce}"


def reports_target(first_seq: int, nonce: str) -> str:
    """Return the target that asks for the evidence from *first_seq* on."""
    return f"{REPORTS_PATH}?from={first_seq}&nonce={nonce}"


def request_mac(key: bytes, node: str, target: str) -> str:
    """Return the MAC of the request for *target* to *node*."""
    return mac(key, f"request {node} GET {target}", b"")


def is_request(key: bytes, node: str, target: str, given: str) -> bool:
    """Return whether *given* is the MAC of the request for *target* to *node*; in constant time."""
    expected = request_mac(key, node, target)
    return hmac.compare_digest(expected.encode(), given.encode("utf-8", "replace"))


def answer_context(node: str, target: str) -> str:
    """Return the context in which *node* answers the request for *target*."""
    return f"answer {node} GET {target}"


def is_nonce(text: str) -> bool:
    """Return whether *text* is a nonce."""
    return _NONCE.fullmatch(text) is not None


def first_seq_of(text: str) -> int | None:
    """Return the sequence number that *text* says, None where it says none that is usable."""
    return max(int(text), 1) if _FROM.fullmatch(text) else None
