"""What this node is doing, in one line: what `systemctl status sparkd` shows. Pure."""

from __future__ import annotations

from sparkd.core.policy import Policy
from sparkd.core.state import State
from sparkd.export import facts
from sparkd.export.human import words
from sparkd.words import Phase


def one_line(state: State, policy: Policy, now: float) -> str:
    """Return phase, progress and generation, what is waited for, and what only a person can do."""
    phase = facts.phase_of(state)
    parts = [words(phase) if phase else "no phase known yet"]
    if state.coordinator is None:
        parts.append(f"worker of {policy.head}")
    elif progress := facts.progress_of(state.coordinator, policy, now):
        parts += [f"{progress.done} of {progress.total}"] if progress.done is not None else []
    if generation := facts.generation_of(state):
        parts.append(f"generation {generation}")
    if state.coordinator is not None and phase is Phase.WAITING and state.coordinator.waiting:
        parts.append(f"for {'; '.join(state.coordinator.waiting)}")
    guard = state.member.guard
    if guard is not None and not guard.enforcing:
        parts.append(f"memory guard {guard.state}")
    if needs := facts.needs_of(state, now):
        parts.append(f"needs you: {needs}")
    return " · ".join(parts)
