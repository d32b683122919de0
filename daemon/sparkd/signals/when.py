"""In which phase it failed: what the text proves, else what the engine had reached, else what is usual."""

from __future__ import annotations

from collections.abc import Sequence

from sparkd.signals.model import Evidence, Signal
from sparkd.words import Phase

# The number of a collective operation tells how far the ranks have come: the first ones connect them, and a
# start takes some hundreds.
_FIRST_OPERATIONS, _MANY_OPERATIONS = 8, 1000
# Where no evidence tells of another place, by cause or by signature.
_USUAL = {
    "broken_install": Phase.RESOLVING_CONFIG,
    "missing_python_dependency": Phase.RESOLVING_CONFIG,
    "nccl_init_failure": Phase.INIT_DISTRIBUTED,
    "shm_too_small": Phase.INIT_DISTRIBUTED,
    "device_side_assert": Phase.SERVING,
    "ib_verbs_failed": Phase.INIT_DISTRIBUTED,
    "chat_template_missing": Phase.SERVING,
}
# The last phases that a rank without a server tells of, each some seconds long: what comes after is untold.
_LAST_TOLD = frozenset({Phase.ALLOCATING_KV_CACHE, Phase.CAPTURING_GRAPHS})
_LAST_TOLD_S = 5.0
# Phases in which an engine takes steps without a request of anybody.
_STEPPING = frozenset(
    {
        Phase.COMPILING,
        Phase.PROFILING,
        Phase.CAPTURING_GRAPHS,
        Phase.VERIFYING,
        Phase.SERVING,
    }
)


def phase_of(root: Signal, signals: Sequence[Signal], evidence: Evidence) -> Phase | None:
    """Return the phase that the text proves; "serving" is only "a step", which a start takes, too."""
    if root.phase is not None and not (root.phase is Phase.SERVING and evidence.phase in _STEPPING):
        return root.phase
    if _is_past_telling(root, evidence):
        return None
    others = (s.phase for s in signals if s.phase is not None and s.fatal)
    return evidence.phase or root.phase or next(others, None) or _usual_phase(root)


def _is_past_telling(root: Signal, evidence: Evidence) -> bool:
    """Return whether it failed when a rank without a server had long said the last that it says of itself."""
    if not evidence.headless or evidence.phase not in _LAST_TOLD:
        return False
    return root.at_s - max((step.at_s for step in evidence.steps), default=root.at_s) > _LAST_TOLD_S


def _usual_phase(root: Signal) -> Phase | None:
    operation = root.quantity("sequence_count")
    if operation is not None and operation <= _FIRST_OPERATIONS:
        return Phase.INIT_DISTRIBUTED
    if operation is not None and operation >= _MANY_OPERATIONS:
        return Phase.SERVING
    return _USUAL.get(root.id) or _USUAL.get(root.cause)
