"""What follows from a diagnosis, by literal remedies; what went before weighs in (core.decision)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.given import POLICY
from sparkd.core import remedy
from sparkd.core.decision import Case, decide, follow
from sparkd.core.remedy import Action, Facts, NodeMemory, Remedy
from sparkd.core.restart import backoff, jittered, spend, spent_on
from sparkd.signals.causes import cause_info
from sparkd.signals.judge import judge
from sparkd.signals.model import Diagnosis, Evidence, Quantity, UnitExit
from sparkd.words import GIB, CudaGraph, LoadFormat, Phase, Settings, Sizes, UnitName

TOTAL = 100 * GIB
TYPICAL = int((1.6 + 0.6 * (0.5 + 2048 * 0.2 / 1024)) * GIB)
"""What typically comes after a reading while serving."""
CAREFUL = Settings(max_num_seqs=4)
FLOOR = Settings(gpu_memory_utilization=0.5, max_num_batched_tokens=512, ray_memory_threshold=None)
GO, STOP = Action.RELAUNCH, Action.ESCALATE


def diagnosed(cause: str, confidence: float = 1.0, node: str | None = "spark-b", **quantities) -> Diagnosis:
    made = tuple(Quantity(name, value) for name, value in quantities.items())
    return Diagnosis(cause, Phase.SERVING, node, None, confidence, "", quantities=made)


def facts(settings: Settings | None = None, **more) -> Facts:
    given = {"failures": 1, "spent": (), "kv_cache_bytes": None, "total_bytes": TOTAL}
    return Facts(settings or Settings(), **{**given, **more})


def chosen(diagnosis, knows=None, policy=POLICY, now=1000.0) -> Remedy:
    return remedy.choose(diagnosis, knows or facts(), policy, now)


EXHAUSTED = "uma_host_exhaustion"
PATIENT = replace(POLICY, backoff_base_s=8.0)


# -- a transient cause ---------------------------------------------------------------------------


def test_what_can_pass_is_relaunched_unchanged_after_the_wait_of_its_row() -> None:
    assert chosen(diagnosed("peer_lost"), facts(CAREFUL, failures=3), PATIENT) == Remedy(
        GO, CAREFUL, "peer_lost can pass: relaunch with unchanged settings", 32.0
    )


@pytest.mark.parametrize(
    ("spent", "causes", "action"),
    [
        (2, 0, GO),
        (3, 0, STOP),
        (0, 2, GO),
        (0, 3, STOP),
        (2, 1, GO),
    ],
)
def test_a_budget_counts_the_window_or_the_incident(spent, causes, action) -> None:
    knows = facts(spent=(("peer_lost", 999.0),) * spent, causes=("peer_lost",) * causes + ("cuda_oom",) * 5)

    found = chosen(diagnosed("peer_lost"), knows)

    assert found.action is action
    if action is STOP:
        assert found.explanation == "3 relaunches for peer_lost did not help"
        assert found.needs == (
            "find what is behind peer_lost (sparkctl incidents show: the proof, what was tried)"
        )


@pytest.mark.parametrize(
    ("advice", "needs"),
    [("clean the disk", "clean the disk"), ("", cause_info("disk_full").advice)],
)
def test_what_only_a_person_can_do_is_what_the_evidence_says_else_the_cause(advice, needs) -> None:
    found = chosen(replace(diagnosed("disk_full"), advice=advice), facts(CAREFUL))

    assert found == Remedy(STOP, CAREFUL, "disk_full does not go away by a restart", needs=needs)
    assert needs


@pytest.mark.parametrize(("confidence", "action"), [(0.9, STOP), (0.899, GO)])
def test_a_permanent_cause_ends_the_trying_where_it_is_proven(confidence, action) -> None:
    assert chosen(diagnosed("disk_full", confidence)).action is action


# -- NCCL ----------------------------------------------------------------------------------------


# Of these the runbook says that no unchanged restart helps.
SET_WRONG = {"gloo_connect_failure", "nccl_socket_connect"}


@pytest.mark.parametrize("cause", remedy.NCCL)
def test_a_fabric_failure_is_unchanged_first_and_one_memory_step_the_second_time(cause) -> None:
    first = chosen(diagnosed(cause))
    second = chosen(diagnosed(cause), facts(causes=(cause,)))
    floor = chosen(diagnosed(cause), facts(FLOOR, causes=(cause,)))

    passes = "rarely passes by itself" if cause in SET_WRONG else "can pass"
    assert first.explanation == f"{cause} {passes}: relaunch with unchanged settings"
    assert second.explanation.startswith(f"{cause} again, one memory step: utilisation 0.9 -> ")
    assert (second.action, second.memory) == (GO, False)
    assert second.settings.gpu_memory_utilization < 0.9
    assert floor == Remedy(GO, FLOOR, f"{cause} again, memory at its floor")


# -- unknown -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", remedy.UNDECIDED)
def test_what_no_evidence_decides(cause) -> None:
    def after(used, settings=None):
        return chosen(diagnosed(cause), facts(settings, causes=(cause,) * used))

    assert after(0).explanation == "no evidence decides the cause: unchanged relaunch 1 of 2"
    assert after(1) == Remedy(GO, Settings(), "no evidence decides the cause: unchanged relaunch 2 of 2")
    assert after(2).explanation.startswith("cause still unknown, one memory step: utilisation 0.9 -> ")
    assert not after(2).memory
    gave_up = after(3)
    assert (gave_up.action, gave_up.settings) == (STOP, Settings())
    assert gave_up.explanation == "3 relaunches without a cause that evidence decides"
    floor = after(2, FLOOR)
    assert (floor.action, floor.explanation) == (
        STOP,
        "2 relaunches without a cause that evidence decides",
    )


def test_what_no_evidence_decides_has_one_budget_whatever_it_looks_like() -> None:
    """Two unchanged relaunches and one memory step in all; a permanent cause that is only suggested, too."""
    names = (*remedy.UNDECIDED, "disk_full") * 3
    for looks in (names, names[1:], names[3:]):
        seen, settings = [], Settings()
        for n, cause in enumerate(looks[:4]):
            suggested = replace(diagnosed(cause), confidence=0.6)
            for known in ({"causes": looks[:n]}, {"spent": tuple((name, 0.0) for name in looks[:n])}):
                found = chosen(suggested, facts(settings, **known))
                seen.append((found.action, found.settings == settings))
            settings = found.settings
        assert seen == [(GO, True)] * 4 + [(GO, False)] * 2 + [(STOP, True)] * 2


def test_an_exhausted_node_at_the_floor_needs_a_person() -> None:
    found = chosen(diagnosed(EXHAUSTED), facts(FLOOR, lowest_available_bytes=GIB))

    assert (found.action, found.settings, found.memory) == (STOP, FLOOR, True)
    assert found.explanation == "every memory setting is at its floor"


def test_a_host_that_others_exhaust_beside_a_gpu_of_its_own_is_not_given_up_on_a_suggestion() -> None:
    """Nothing of the engine's fills that memory once it reads lazily: what did may be gone."""
    policy = replace(POLICY, unified_memory=False)
    lazy = Settings(load_format=LoadFormat.LAZY)
    suggested = diagnosed(EXHAUSTED, confidence=0.6)

    tried = [chosen(suggested, facts(lazy, causes=(EXHAUSTED,) * n), policy) for n in range(3)]
    assert [(r.action, r.settings, r.memory) for r in tried] == [
        (GO, lazy, False),
        (GO, lazy, False),
        (STOP, lazy, True),
    ]
    proven = chosen(diagnosed(EXHAUSTED), facts(lazy), policy)
    for given_up in (tried[-1], proven):
        assert given_up.explanation == "no memory setting of the engine makes room in the node's own memory"
        assert "stop other programs there" in given_up.needs


def test_exhausted_nodes_before_count_as_failures_of_memory_and_others_do_not() -> None:
    def cut(*causes):
        knows = facts(lowest_available_bytes=3 * GIB, kv_cache_bytes=40 * GIB, causes=causes)
        return chosen(diagnosed(EXHAUSTED), knows).settings.kv_cache_bytes

    assert cut() == cut("peer_lost") == cut("unknown") == cut("host_memory_pressure")
    assert cut() > cut(EXHAUSTED) == cut("cuda_oom") > cut("cuda_oom", EXHAUSTED)


@pytest.mark.parametrize(
    ("causes", "times"),
    [
        ((), 0),
        (("peer_lost", "nccl_timeout", "unknown", "unknown"), 0),
        (("disk_full", "unknown", "unknown"), 1),
        (("cuda_oom",), 1),
        (("peer_lost", "cuda_oom"), 1),
        (("cuda_oom", "peer_lost"), 1),
        (("cuda_oom", "kernel_oom"), 2),
        (("kv_cache_too_small",), 1),
        (("cuda_oom", "kv_cache_too_small"), 1),
        (("nccl_timeout", "nccl_timeout"), 1),
        (("nccl_timeout", "nccl_remote_error"), 1),
        (("nccl_timeout", "nccl_timeout", "nccl_timeout"), 1),
        (("unknown",) * 3, 1),
        (("unknown", "unknown", "killed_unspecified"), 1),
    ],
)
def test_a_kill_after_the_first_step_shows_that_typical_amounts_were_too_small(causes, times) -> None:
    """A failure that is relaunched unchanged says nothing of the settings, and a refusal is no kill."""
    found = chosen(diagnosed("cuda_oom", used_bytes=97.0 * GIB), facts(causes=causes))
    least = chosen(diagnosed("cuda_oom", used_bytes=97.0 * GIB), facts())

    more = least.settings.gpu_memory_utilization - found.settings.gpu_memory_utilization
    assert more == pytest.approx(times * TYPICAL / TOTAL, abs=0.002)


# -- memory --------------------------------------------------------------------------------------


def test_a_memory_failure_takes_a_step_without_a_budget() -> None:
    found = chosen(diagnosed("cuda_oom"), facts(failures=2, causes=("cuda_oom",) * 9), PATIENT)

    assert (found.action, found.memory, found.backoff_s) == (GO, True, 16.0)
    assert found.settings.gpu_memory_utilization < 0.9


@pytest.mark.parametrize(
    ("diagnosis", "needs"),
    [
        (replace(diagnosed("cuda_oom"), advice="another model"), "another model"),
        (diagnosed("cgroup_oom"), cause_info("cgroup_oom").advice),
        (
            diagnosed("cuda_oom"),
            "Lower the floors, free memory on the node, or use a smaller model or more nodes.",
        ),
    ],
)
def test_at_the_floor_the_best_advice_is_given(diagnosis, needs) -> None:
    found = chosen(diagnosis, facts(FLOOR))

    assert found == Remedy(STOP, FLOOR, "every memory setting is at its floor", needs=needs, memory=True)


LOW = {"free_bytes": 50.0 * GIB, "total_bytes": float(TOTAL)}


@pytest.mark.parametrize(
    ("free", "weights", "ours"),
    [
        (50.0 * GIB, None, True),
        (50.0 * GIB - 1, None, False),
        (60.0 * GIB, 59 * GIB, True),
        (60.0 * GIB - 1, 59 * GIB, False),
    ],
)
def test_so_little_was_free_that_no_allowed_share_could_hold_the_model(free, weights, ours) -> None:
    low = diagnosed("startup_free_memory_too_low", free_bytes=free, total_bytes=float(TOTAL))

    found = chosen(low, facts(CAREFUL, weights_bytes=weights))

    text = (
        f"only {free / GIB:.1f} GiB were free, less than any allowed share: something else holds the memory"
    )
    assert (found.settings == CAREFUL) is not ours
    assert (found == Remedy(GO, CAREFUL, f"{text}; tried again unchanged")) is not ours


def test_memory_that_others_hold_is_waited_for_within_the_budget() -> None:
    low = diagnosed("startup_free_memory_too_low", free_bytes=GIB, total_bytes=float(TOTAL))

    def after(used, node="spark-b"):
        return chosen(replace(low, node=node), facts(causes=("startup_free_memory_too_low",) * used))

    assert after(2).action is GO
    assert after(3) == Remedy(
        STOP,
        Settings(),
        "3 relaunches found no more memory",
        needs="end what holds the memory of spark-b (only 1.0 GiB were free)",
    )
    assert after(3, None).needs.startswith("end what holds the memory of the node (")


@pytest.mark.parametrize("quantities", [{}, {"free_bytes": GIB}, {"total_bytes": float(TOTAL)}])
def test_without_numbers_nobody_else_is_blamed(quantities) -> None:
    found = chosen(diagnosed("startup_free_memory_too_low", **quantities))

    assert "something else" not in found.explanation
    assert "something else" not in chosen(diagnosed("cuda_oom", **{**LOW, "free_bytes": 0.0})).explanation


@pytest.mark.parametrize(
    ("known", "step"),
    [
        (
            {"loading_available_bytes": 80 * GIB},
            "114.4 GiB are to be expected from what the node held before",
        ),
        ({"baseline_bytes": 90 * GIB}, "108.9 GiB are to be expected from what the node held before"),
        (
            {"baseline_bytes": 90 * GIB, "sizes": Sizes(start_free_bytes=70 * GIB)},
            "123.8 GiB are to be expected from what the node held before",
        ),
        ({"lowest_available_bytes": GIB}, "99.0 GiB were in use, 3.9 GiB more are to be expected"),
    ],
)
def test_a_memory_step_uses_all_that_was_measured_on_the_node(known, step) -> None:
    found = chosen(
        replace(diagnosed("cuda_oom"), phase=Phase.CAPTURING_GRAPHS), facts(kv_cache_bytes=40 * GIB, **known)
    )

    assert step in found.explanation


def test_a_memory_step_uses_what_is_known_of_one_request() -> None:
    """Of 4 GiB, which one request of 32768 tokens needs, half a GiB has to go."""
    request = {"request_kv_bytes": 4 * GIB, "request_tokens": 32768}
    lean = Settings(max_num_batched_tokens=512, cudagraph=CudaGraph.NONE)

    found = chosen(diagnosed("cuda_oom", used_bytes=1.0), facts(lean, kv_cache_bytes=4 * GIB, **request))

    assert found.settings.kv_cache_bytes == 4 * GIB - GIB // 2
    assert found.settings.max_model_len == int(32768 * 3.5 / 4 / 1.02) // 128 * 128


def test_refusals_of_one_incident_are_counted() -> None:
    small = diagnosed("kv_cache_too_small", needed_bytes=12.0 * GIB, available_bytes=4.0 * GIB)

    def after(refusals):
        return chosen(small, facts(causes=("cuda_oom", *["kv_cache_too_small"] * refusals)))

    assert (after(2).action, after(3).action) == (GO, STOP)


# -- whose memory --------------------------------------------------------------------------------

NODES = (NodeMemory("spark-a", TOTAL, 90 * GIB, 60 * GIB), NodeMemory("spark-b", TOTAL, 80 * GIB, GIB))


@pytest.mark.parametrize(
    ("node", "nodes", "empty"),
    [
        ("spark-a", NODES, False),
        ("spark-b", NODES, True),
        (None, NODES, True),
        ("spark-z", NODES, False),
        (None, (NODES[0],), False),
        (None, (NODES[0], NodeMemory("spark-b")), False),
        (None, NODES[::-1], True),
        ("spark-b", (replace(NODES[1], total_bytes=None),), True),
    ],
)
def test_the_guilty_nodes_memory_counts_else_the_emptiest(node, nodes, empty) -> None:
    found = chosen(diagnosed(EXHAUSTED, node=node), facts(nodes=nodes, kv_cache_bytes=40 * GIB))
    known = facts(baseline_bytes=80 * GIB, lowest_available_bytes=GIB, kv_cache_bytes=40 * GIB)
    assert (found == chosen(diagnosed(EXHAUSTED), known)) is empty


def test_of_equally_empty_nodes_the_first_by_name_counts() -> None:
    equal = (replace(NODES[1], baseline_bytes=10 * GIB), replace(NODES[0], lowest_available_bytes=GIB))
    other = equal[::-1]

    knows = [facts(nodes=nodes, kv_cache_bytes=40 * GIB) for nodes in (equal, other)]
    one, two = (chosen(diagnosed(EXHAUSTED, node=None), known) for known in knows)

    assert one == two
    assert one == chosen(diagnosed(EXHAUSTED, node="spark-a"), knows[0])


@pytest.mark.parametrize(
    ("of_diagnosis", "used"),
    [(TOTAL, True), (TOTAL / 1.099, True), (TOTAL / 1.11, False), (TOTAL * 1.12, False), (0.0, True)],
)
def test_readings_of_another_memory_say_nothing(of_diagnosis, used) -> None:
    def cut(lowest):
        knows = facts(lowest_available_bytes=lowest, kv_cache_bytes=40 * GIB)
        return chosen(diagnosed(EXHAUSTED, total_bytes=of_diagnosis), knows).settings

    assert (cut(GIB) != cut(None)) is used


def test_memory_that_differs_by_a_tenth_is_the_same() -> None:
    def cut(total, lowest):
        knows = facts(lowest_available_bytes=lowest, total_bytes=total, kv_cache_bytes=40 * GIB)
        return chosen(diagnosed(EXHAUSTED, total_bytes=100.0 * GIB), knows).settings

    assert cut(110 * GIB, GIB) != cut(110 * GIB, None)
    assert cut(110 * GIB + 1, GIB) == cut(110 * GIB + 1, None)


# -- what went before ----------------------------------------------------------------------------

OOM = diagnosed("cuda_oom")
TRIAL = Case(Evidence(), facts(), 7, 1000.0, trial=True, proven=CAREFUL)


def test_a_trial_that_fails_for_memory_falls_back_to_what_served() -> None:
    found = follow(TRIAL, OOM, POLICY)

    assert found == Remedy(
        GO, CAREFUL, "the asked settings failed again: back to those that served before", memory=True
    )
    at_floor = follow(replace(TRIAL, facts=facts(FLOOR)), OOM, POLICY)
    assert (at_floor.action, at_floor.settings) == (GO, CAREFUL)


@pytest.mark.parametrize(
    ("changes", "diagnosis"),
    [
        ({"trial": False}, OOM),
        ({"proven": None}, OOM),
        ({"proven": Settings()}, OOM),
        ({}, diagnosed("peer_lost")),
    ],
)
def test_otherwise_the_remedy_is_that_of_the_cause(changes, diagnosis) -> None:
    case = replace(TRIAL, **changes)

    assert follow(case, diagnosis, POLICY) == remedy.choose(diagnosis, case.facts, POLICY, 1000.0)


def test_a_fall_back_waits_as_any_relaunch() -> None:
    waits = replace(PATIENT, jitter_share=0.0)

    assert follow(replace(TRIAL, facts=facts(failures=2)), OOM, waits).backoff_s == 16.0


@pytest.mark.parametrize(
    ("advice", "needs"), [("look", "look"), ("", "peer_lost: trying again by itself did not help either")]
)
def test_a_slow_retry_that_fails_again_ends_at_once_unless_a_memory_step_is_left(advice, needs) -> None:
    retry = Case(Evidence(), facts(), 7, 1000.0, retrying=True)

    lost = follow(retry, replace(diagnosed("peer_lost"), advice=advice), POLICY)

    assert lost == Remedy(
        STOP, Settings(), "peer_lost: trying again by itself did not help either", needs=needs
    )
    assert follow(retry, OOM, POLICY).action is GO
    assert (
        follow(retry, diagnosed("disk_full"), POLICY).explanation == "disk_full does not go away by a restart"
    )


def test_the_wait_is_spread_by_the_plan_and_the_generation() -> None:
    case = Case(Evidence(), facts(), 7, 1000.0)

    found = follow(case, diagnosed("peer_lost"), PATIENT)

    assert found.backoff_s == jittered(8.0, "shared/7", PATIENT)
    assert 8.0 < found.backoff_s < 8.8
    assert follow(replace(case, generation=8), diagnosed("peer_lost"), PATIENT).backoff_s != found.backoff_s


def test_a_decision_is_the_judgement_of_the_evidence_and_what_follows_from_it() -> None:
    ended = Evidence(
        exits=(UnitExit("spark-b", UnitName.SERVE, 7, 999.0, code=1),), nodes=("spark-a", "spark-b")
    )

    diagnosis, found = decide(Case(ended, facts(), 7, 1000.0), POLICY)

    assert diagnosis == judge(ended)
    assert diagnosis.cause in remedy.UNDECIDED
    assert found == remedy.choose(diagnosis, facts(), POLICY, 1000.0)


# -- budgets and waits ---------------------------------------------------------------------------


@pytest.mark.parametrize(("failures", "wait_s"), [(0, 8.0), (1, 8.0), (2, 16.0), (6, 256.0), (7, 300.0)])
def test_the_wait_doubles_from_the_first_failure_on(failures, wait_s) -> None:
    assert backoff(failures, PATIENT) == wait_s


def test_a_wait_may_double_so_often_and_no_more() -> None:
    endless = replace(POLICY, backoff_base_s=1.0, backoff_max_s=1e9)

    assert [backoff(n, endless) for n in (17, 18, 99)] == [65536.0] * 3


def test_the_spread_is_a_share_and_the_same_for_the_same_seed() -> None:
    assert jittered(100.0, "a", replace(POLICY, jitter_share=0.0)) == 100.0
    assert jittered(100.0, "a", POLICY) == pytest.approx(109.0905, abs=1e-3)


def test_a_relaunch_counts_until_the_window_has_passed() -> None:
    spent = spend("a", (("b", 0.0), ("b", 0.5)), POLICY, 3600.0)

    assert spent == (("b", 0.5), ("a", 3600.0))
    assert (spent_on("b", spent, POLICY, 3600.4), spent_on("b", spent, POLICY, 3600.5)) == (1, 0)


def test_reading_lazily_is_all_that_helps_a_discrete_gpus_node() -> None:
    found = chosen(diagnosed("kernel_oom"), facts(), replace(POLICY, unified_memory=False))

    assert found.settings == Settings(load_format=LoadFormat.LAZY)
