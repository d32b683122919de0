"""What the daemon would do about a diagnosis: its own rules are asked.

The settings are those that the evidence tells of, else the default ones.
"""

from __future__ import annotations

from sparkd.core.policy import Policy
from sparkd.core.remedy import Action, Facts, choose
from sparkd.signals.causes import NONE
from sparkd.signals.model import Diagnosis
from sparkd.signals.quantities import threshold_share_of
from sparkd.words import Phase, Settings

_NOTHING = frozenset({NONE, "clean_shutdown"})
# Of these a serving engine refuses a request and goes on: that its log tells of it is no end.
_OF_A_REQUEST = frozenset({"tokenizer_or_template_error", "bad_cli_argument"})
_PROVEN = 0.9
GOES_ON = "nothing: the engine refuses such requests and serves on"


def would(diagnosis: Diagnosis) -> tuple[str, str]:
    """Return what sparkd would do and what only a person can do; either may be empty."""
    if diagnosis.cause in _NOTHING:
        return "", ""
    if _is_of_a_request(diagnosis):
        return GOES_ON, diagnosis.advice
    kv_cache, total, needed = (
        _whole(diagnosis.quantity(name)) for name in ("kv_cache_bytes", "total_bytes", "needed_bytes")
    )
    threshold = threshold_share_of(diagnosis) or Settings().ray_memory_threshold
    facts = Facts(Settings(ray_memory_threshold=threshold), 1, (), kv_cache, total, request_kv_bytes=needed)
    remedy = choose(diagnosis, facts, Policy(node="", head="", nodes=()), 0.0)
    if remedy.action is Action.ESCALATE:
        return "", diagnosis.advice or remedy.needs or remedy.explanation
    return remedy.explanation, diagnosis.advice


def _is_of_a_request(diagnosis: Diagnosis) -> bool:
    refused = diagnosis.cause in _OF_A_REQUEST and diagnosis.phase is Phase.SERVING
    return refused and diagnosis.confidence < _PROVEN


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
