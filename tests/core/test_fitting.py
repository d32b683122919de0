"""Sizing asked before a launch: what is adjusted, what is refused, and what is left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.given import HEAD, NOW, WORKER, head_state, status_of_worker, turn_of, worker_seen
from sizing.large import sized_large
from sparkd.core import fitting
from sparkd.core.policy import UnfitPlan
from sparkd.core.records import IncidentClosed, IncidentOpened, PlanDoubted, SettingsAdopted
from sparkd.core.state import Incident
from sparkd.signals.model import MemorySample
from sparkd.words import GIB, Floors, Phase, Settings

TOTAL = int(119.7 * GIB)
FREE = int(117.2 * GIB)
SEED = Settings()
"""Utilisation 0.90 and Ray's monitor at 95 %: with 54 GiB of weights a rank it dies during the capture."""
SMALL = Settings(gpu_memory_utilization=0.70)


def asked(settings=SEED, *, weights=54.0, free=FREE, worker_free=FREE, policy=None, member=None, **lead):
    """Return the turn in which a launch of *settings* is asked for, and whether it may follow."""
    model = None if weights is None else sized_large(weights)
    own = {"memory": MemorySample(NOW, free, TOTAL), "model": model, **(member or {})}
    peer = worker_seen(status_of_worker(available_bytes=worker_free, total_bytes=TOTAL))
    state = head_state(Phase.FENCING, member=own, peer=peer, settings=settings, **lead)
    turn = turn_of(state, settings=settings, **(policy or {}))
    return turn, fitting.admit(turn)


def doubted(turn) -> PlanDoubted:
    (record,) = [r for r in turn.records if isinstance(r, PlanDoubted)]
    return record


def test_the_case_that_the_project_began_with_is_adjusted_before_its_first_launch() -> None:
    turn, admitted = asked()

    assert admitted
    found = doubted(turn)
    assert (found.node, found.phase, found.cause) == (HEAD, Phase.CAPTURING_GRAPHS, "ray_oom_kill")
    assert found.action == "adjusted" and found.over_bytes > GIB
    settings = turn.lead.settings
    assert settings.ray_memory_threshold == 0.98, "what costs nothing comes first"
    assert 0.88 <= settings.gpu_memory_utilization < 0.90, "and then only a little of the cache"
    assert (settings.cudagraph, settings.kv_cache_bytes) == (SEED.cudagraph, None)
    (told,) = [r for r in turn.records if isinstance(r, SettingsAdopted)]
    assert told.settings == settings
    assert "capturing graphs needs" in told.reason and "gpu_memory_utilization 0.9 -> 0.8" in told.reason
    assert fitting.unfit(turn, settings) is None, "the same question has no second answer"


def test_a_plan_that_fits_is_launched_without_a_word() -> None:
    turn, admitted = asked(SMALL)
    assert (admitted, turn.records, turn.lead.settings) == (True, [], SMALL)


@pytest.mark.parametrize("unknown", [{"weights": None}, {"policy": {"unified_memory": False}}])
def test_what_is_unknown_changes_nothing(unknown) -> None:
    turn, admitted = asked(**unknown)
    assert (admitted, turn.records, turn.lead.settings) == (True, [], SEED)


def test_a_node_whose_memory_is_unknown_leaves_the_other_to_decide() -> None:
    turn, _ = asked(member={"memory": None})
    assert doubted(turn).node == WORKER


def test_a_share_that_is_not_free_hides_no_weights_that_can_never_fit() -> None:
    turn, admitted = asked(weights=118.0, free=int(90 * GIB))
    assert not admitted
    assert doubted(turn).phase is Phase.LOADING_WEIGHTS


def test_the_node_with_less_memory_decides() -> None:
    turn, admitted = asked(SMALL, worker_free=int(92 * GIB))
    assert admitted
    assert doubted(turn).node == WORKER
    assert turn.lead.settings.gpu_memory_utilization < SMALL.gpu_memory_utilization


def test_both_nodes_fit_what_was_chosen_for_them() -> None:
    turn, _ = asked(worker_free=int(112 * GIB))
    alone, _ = asked()
    assert turn.lead.settings.gpu_memory_utilization < alone.lead.settings.gpu_memory_utilization
    assert fitting.unfit(turn, turn.lead.settings) is None


def test_who_only_warns_launches_as_asked_and_says_what_would_fail() -> None:
    turn, admitted = asked(policy={"unfit_plan": UnfitPlan.WARN})
    assert (admitted, turn.lead.settings) == (True, SEED)
    assert doubted(turn).action == "launched" and "only warns" in doubted(turn).text


def test_who_refuses_gets_the_phase_the_amount_and_the_settings_that_fit() -> None:
    turn, admitted = asked(policy={"unfit_plan": UnfitPlan.REFUSE})

    assert not admitted
    assert (turn.lead.phase, turn.lead.settings) == (Phase.ESCALATED, SEED)
    assert doubted(turn).action == "refused"
    assert "gpu_memory_utilization 0.9 -> 0.8" in turn.lead.needs and "sparkctl start" in turn.lead.needs
    (opened,) = [r for r in turn.records if isinstance(r, IncidentOpened)]
    assert "capturing graphs needs" in opened.reason and "GiB more than may be used" in opened.reason
    (closed,) = [r for r in turn.records if isinstance(r, IncidentClosed)]
    assert (closed.outcome, closed.cause) == ("escalated", "ray_oom_kill")
    assert turn.lead.retry_at_s is None, "no time makes it fit"


def test_memory_that_others_hold_may_come_back_so_a_refusal_is_tried_again() -> None:
    turn, admitted = asked(SMALL, free=int(60 * GIB), policy={"unfit_plan": UnfitPlan.REFUSE})
    assert not admitted
    assert turn.lead.retry_at_s == NOW + turn.policy.escalated_retry_s
    assert "sparkctl start" not in turn.lead.needs, "it goes on by itself"
    turn, _ = asked(
        SMALL, free=int(60 * GIB), policy={"unfit_plan": UnfitPlan.REFUSE, "escalated_retry_s": 0.0}
    )
    assert turn.lead.needs.endswith("; then: sparkctl start")


@pytest.mark.parametrize(
    ("lead", "why"),
    [
        ({"proven": SEED}, "served here"),
        ({"verified": SEED}, "served here"),
        ({"incident": Incident(number=3, opened_at_s=NOW)}, "evidence chose"),
    ],
)
@pytest.mark.parametrize("mode", [UnfitPlan.ADJUST, UnfitPlan.REFUSE])
def test_what_was_seen_stands_against_typical_amounts(lead, why, mode) -> None:
    turn, admitted = asked(policy={"unfit_plan": mode}, **lead)
    assert (admitted, turn.lead.settings) == (True, SEED)
    assert doubted(turn).action == "launched" and why in doubted(turn).text


def test_settings_that_served_before_are_better_than_any_that_fit_by_the_numbers() -> None:
    turn, _ = asked(proven=SMALL, trial=True)
    assert (turn.lead.settings, turn.lead.trial) == (SMALL, False)
    assert "those that served before" in doubted(turn).text


def test_settings_that_failed_for_memory_are_not_chosen() -> None:
    chosen = asked()[0].lead.settings
    turn, admitted = asked(proven=SMALL, failed=(SMALL, chosen))
    assert (admitted, turn.lead.settings) == (True, SEED)
    assert doubted(turn).action == "launched"


def test_what_no_typical_amount_is_needed_for_is_never_launched() -> None:
    turn, admitted = asked(weights=118.0)
    assert not admitted
    assert turn.lead.phase is Phase.ESCALATED
    assert doubted(turn).phase is Phase.LOADING_WEIGHTS
    assert "smaller quantisation, or more nodes" in turn.lead.needs


def test_where_only_typical_amounts_speak_against_it_and_nothing_fits_it_is_tried() -> None:
    """Weights that leave a cache of hardly one request, and floors at what is asked."""
    floors = Floors(gpu_memory_utilization=0.90, max_num_batched_tokens=2048, eager_allowed=False)
    turn, admitted = asked(policy={"floors": replace(floors, max_num_seqs=256)})
    assert (admitted, turn.lead.settings) == (True, SEED)
    assert "it is tried" in doubted(turn).text


def test_the_engine_that_runs_does_not_count_against_its_own_next_start() -> None:
    running = {"memory": MemorySample(NOW, 3 * GIB, TOTAL), "ran": True, "baseline_bytes": FREE}
    state = head_state(
        Phase.SERVING,
        member={**running, "model": sized_large(54.0)},
        peer=worker_seen(status_of_worker(available_bytes=3 * GIB, total_bytes=TOTAL, baseline_bytes=FREE)),
    )
    turn = turn_of(state)
    assert not fitting.rejects(turn, SMALL)
    assert fitting.rejects(turn, SEED)
    assert not fitting.rejects(turn_of(state, unfit_plan=UnfitPlan.WARN), SEED)
