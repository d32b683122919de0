"""The judge's order, in tables: what wins over what, and what follows from what."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.signals.causes import CAUSES
from sparkd.signals.judge import judge, weigh
from sparkd.signals.model import Evidence, Proof, Quantity, Signal, UnitExit, Work
from sparkd.signals.precedence import ORDER
from sparkd.words import GIB, Phase, UnitName

PROVES, SUGGESTS, CASCADE = Proof.PROVES, Proof.SUGGESTS, Proof.CASCADE


def sig(cause: str, at_s: float = 10.0, proof: Proof = PROVES, node: str = "a", **fields: object) -> Signal:
    fields = {"id": f"seen_{cause}", "fatal": True, "source": "log", "quote": cause, **fields}
    return Signal(cause=cause, proof=proof, node=node, at_s=at_s, **fields)  # type: ignore[arg-type]


def end(at_s: float = 11.0, unit: UnitName = UnitName.SERVE, node: str = "a", **how: object) -> UnitExit:
    return UnitExit(node, unit, 1, at_s, **how)  # type: ignore[arg-type]


DIED = sig("worker_process_died", id="worker_died_ray", rank=1, node="b")
DEAD = sig("engine_dead_unspecified", 10.1, CASCADE, id="engine_dead")

WINS = [
    # (what is in view, what is the cause)
    ("a death alone", [DIED, DEAD], "worker_process_died"),
    ("Ray's kill of any node over the death", [DIED, sig("ray_oom_kill", 10.9, node="b")], "ray_oom_kill"),
    (
        "Ray's kill over the death, read much later",
        [DIED, sig("ray_oom_kill", 70.0, fatal=False)],
        "ray_oom_kill",
    ),
    ("the kernel over Ray's kill", [sig("ray_oom_kill"), sig("kernel_oom", 10.5)], "kernel_oom"),
    ("a lost raylet over its worker's death", [DIED, sig("ray_node_died", 12.0, node="b")], "ray_node_died"),
    ("allocator text over the death it caused", [sig("cuda_oom"), DIED], "cuda_oom"),
    (
        "shared memory over NCCL's surface",
        [sig("nccl_init_failure", 9, SUGGESTS), sig("shm_too_small")],
        "shm_too_small",
    ),
    ("RDMA over NCCL's timeout", [sig("nccl_timeout"), sig("ib_roce_error", 9.0)], "ib_roce_error"),
    (
        "a refused token over the unreached GCS",
        [sig("ray_gcs_unreachable"), sig("ray_auth_refused", 11)],
        "ray_auth_refused",
    ),
    (
        "a missing module over the rendezvous it broke",
        [sig("c10d_connect_timeout", 300, SUGGESTS), sig("missing_python_dependency", 5, node="b")],
        "missing_python_dependency",
    ),
    (
        "a rendezvous timeout over the death it ended in",
        [sig("c10d_connect_timeout", 10, SUGGESTS), sig("worker_process_died", 10.1)],
        "c10d_connect_timeout",
    ),
    (
        "a death over the survivor's gloo error",
        [sig("peer_lost", 9.9, CASCADE, node="b"), DIED],
        "worker_process_died",
    ),
    (
        "a lost peer, observed, over the step that timed out",
        [sig("engine_hang", 60.0), sig("peer_lost", 10.0, id="observed_peer_lost", node="b")],
        "peer_lost",
    ),
    (
        "a wait for GPUs over the phase that stuck",
        [
            sig("ray_insufficient_resources", 5.0, SUGGESTS, fatal=False),
            sig("engine_hang", 600.0, id="observed_phase_stuck"),
        ],
        "ray_insufficient_resources",
    ),
    ("the surface where there is nothing else", [DEAD], "engine_dead_unspecified"),
    (
        "a survivor's error where there is nothing else",
        [DEAD, sig("peer_lost", 10, CASCADE, node="b")],
        "peer_lost",
    ),
    ("the earlier of equals", [sig("nccl_timeout", 20.0), sig("engine_hang", 10.0)], "engine_hang"),
    (
        "the place among equals within a tie",
        [sig("ray_node_died", 10.0), sig("ray_gcs_unreachable", 10.2)],
        "ray_gcs_unreachable",
    ),
    ("an asked stop before everything", [sig("clean_shutdown", 9.0), DIED, DEAD], "clean_shutdown"),
    ("not a stop that follows the first trouble", [DIED, sig("clean_shutdown", 10.4)], "worker_process_died"),
    (
        "not the stop of a node that is being fenced",
        [DIED, sig("clean_shutdown", 10.05)],
        "worker_process_died",
    ),
    (
        "not the death that follows a hang",
        [sig("engine_hang", 10), sig("worker_process_died", 10.3), sig("ray_node_died", 10.6)],
        "engine_hang",
    ),
    (
        "the death behind an unanswered generation",
        [sig("engine_hang", 10, id="observed_canary_failed"), sig("worker_process_died", 10.3)],
        "worker_process_died",
    ),
    (
        "not the death that follows the engine's own error",
        [sig("engine_dead_unspecified", 5, CASCADE, id="engine_core_failed"), sig("worker_process_died", 9)],
        "engine_dead_unspecified",
    ),
    (
        "the death whose survivor failed a moment earlier",
        [
            sig("engine_dead_unspecified", 9, CASCADE, id="worker_exception"),
            sig("peer_lost", 9, CASCADE),
            sig("worker_process_died", 9.8, node="b"),
        ],
        "worker_process_died",
    ),
    (
        "the death over the survivor's NCCL error",
        [
            sig("engine_dead_unspecified", 9, CASCADE, id="worker_exception"),
            sig("nccl_init_failure", 9, SUGGESTS),
            sig("worker_process_died", 10.5, node="b"),
        ],
        "worker_process_died",
    ),
    (
        "NCCL's error over the end of the processes that it ended",
        [
            sig("engine_dead_unspecified", 9, CASCADE, id="worker_exception"),
            sig("nccl_init_failure", 9, SUGGESTS),
            sig("worker_process_died", 14.0),
        ],
        "nccl_init_failure",
    ),
    (
        "the death over the collective that waited for the dead",
        [sig("worker_process_died", 10.0, node="b"), sig("nccl_timeout", 610.0)],
        "worker_process_died",
    ),
    (
        "an exception that nobody knows over a survivor's error and the surface",
        [
            sig("unknown", 10.0, CASCADE, id="unexplained_exception"),
            sig("peer_lost", 10.0, CASCADE),
            sig("killed_unspecified", 12.0),
            DEAD,
        ],
        "unknown",
    ),
    (
        "a death that is told over an exception that nobody knows",
        [
            sig("unknown", 10.0, CASCADE, id="unexplained_exception"),
            sig("worker_process_died", 10.0, CASCADE),
        ],
        "worker_process_died",
    ),
    (
        "shared memory that is only suggested over the death that it causes",
        [sig("shm_too_small", 10.0, SUGGESTS), sig("worker_process_died", 10.1)],
        "shm_too_small",
    ),
    (
        "not an old unrelated kill",
        [sig("ray_oom_kill", 10.0, fatal=False), sig("worker_process_died", 300.0)],
        "worker_process_died",
    ),
    (
        "not a warning of a phase long left",
        [
            sig("gloo_connect_failure", 280.0, SUGGESTS, fatal=False, phase=Phase.INIT_DISTRIBUTED),
            sig("worker_process_died", 300.0),
        ],
        "worker_process_died",
    ),
    (
        "a driver's message only with the journal's",
        [sig("uma_host_exhaustion", 9, SUGGESTS, id="x", fatal=False), DIED],
        "worker_process_died",
    ),
    (
        "two witnesses of exhausted memory",
        [
            sig("uma_host_exhaustion", 9, SUGGESTS, id="x", fatal=False),
            sig("uma_host_exhaustion", 9.5, SUGGESTS, id="y", fatal=False),
            DIED,
        ],
        "uma_host_exhaustion",
    ),
]


@pytest.mark.parametrize(("signals", "cause"), [row[1:] for row in WINS], ids=[row[0] for row in WINS])
def test_the_order(signals: list[Signal], cause: str) -> None:
    for order in (signals, signals[::-1]):
        found = judge(Evidence(signals=tuple(order), phase=Phase.SERVING))
        assert found.cause == cause
        assert (found.confidence >= 0.5) == (cause != "unknown")


EXITS = [
    ("serve killed with SIGKILL", [end(signal=9)], "killed_unspecified"),
    ("the same as a shell says it", [end(code=137)], "killed_unspecified"),
    ("serve crashed", [end(signal=11)], "worker_process_died"),
    ("serve ended with SIGTERM by somebody", [end(signal=15)], "clean_shutdown"),
    ("ray killed", [end(unit=UnitName.RAY, signal=9)], "ray_node_died"),
    ("ray ended by itself", [end(unit=UnitName.RAY, code=1)], "ray_node_died"),
    ("code 0, unasked", [end(code=0)], "unknown"),
    ("code 1, and not a word", [end(code=1)], "unknown"),
    ("ordered", [end(signal=9, ordered=True)], "none"),
    ("nothing", [], "none"),
]


@pytest.mark.parametrize(("exits", "cause"), [row[1:] for row in EXITS], ids=[row[0] for row in EXITS])
def test_ends_alone(exits: list[UnitExit], cause: str) -> None:
    found = judge(Evidence(exits=tuple(exits), phase=Phase.SERVING))
    assert found.cause == cause
    assert (found.confidence >= 0.5) == (cause != "unknown")
    assert found.candidates or cause not in {"unknown", "killed_unspecified"}


def test_unknown_says_what_it_might_be_and_what_would_decide() -> None:
    found = judge(Evidence(exits=(end(code=0),), phase=Phase.SERVING))
    assert found.explanation == (
        "a: serve ended with code 0 without being asked while serving, and no evidence says why"
    )
    assert found.candidates
    assert "would decide" in found.advice
    assert found.evidence[0].text.startswith("serve on a ended")


def test_ordered_ends_do_not_relabel_a_hang() -> None:
    ends = (end(12, signal=9, ordered=True), end(12, UnitName.RAY, "b", signal=9, ordered=True))
    found = judge(Evidence(signals=(sig("engine_hang", 10.0),), exits=ends, phase=Phase.SERVING))
    assert found.cause == "engine_hang"
    assert not found.cascade


def test_a_stop_of_ones_own_accord_is_the_cause_where_the_unit_ended() -> None:
    stop = sig("clean_shutdown", 10.1, node="b")
    gone = end(10.3, UnitName.RAY, "b", code=1)
    assert judge(Evidence(signals=(DIED, stop), exits=(gone,))).cause == "clean_shutdown"


def test_the_sentence_of_the_headline_case() -> None:
    kill = sig(
        "ray_oom_kill",
        node="spark-a",
        rank=0,
        quantities=(Quantity("used_bytes", 113.78 * GIB), Quantity("total_bytes", 119.70 * GIB)),
    )
    found = judge(
        Evidence(signals=(kill, DIED), phase=Phase.CAPTURING_GRAPHS, kv_cache_bytes=round(49.1 * GIB))
    )
    assert found.explanation == (
        "spark-a: Ray's memory monitor killed worker rank 0 during graph capture at 113.78 of 119.70 GiB "
        "(95.05 %); 49.1 GiB of KV cache was already allocated"
    )
    assert (found.node, found.rank, found.phase) == ("spark-a", 0, Phase.CAPTURING_GRAPHS)
    assert found.quantity("kv_cache_bytes") == round(49.1 * GIB)
    assert [q.role for q in found.evidence] == ["root"]
    assert [q.role for q in found.cascade] == ["cascade"]
    assert found.transient is False


WAITED = (Quantity("waited_s", 60.0),)


@pytest.mark.parametrize(
    ("signal", "sentence"),
    [
        (
            sig("ray_gcs_unreachable", node="", quantities=WAITED),
            "Ray's control process on the head was unreachable for 60 s while serving",
        ),
        (
            sig("killed_unspecified", rank=1),
            "a: a process was killed with SIGKILL (rank 1) while serving, and nothing says by whom",
        ),
        (sig("peer_lost", node="b"), "b: the node was lost while serving"),
        (sig("peer_lost", node=""), "another node was lost while serving"),
        (
            sig("ray_node_died", node="b"),
            "b: the node's Ray process died or was lost while serving",
        ),
        (sig("ray_node_died", node=""), "a node's Ray process died or was lost while serving"),
        (
            sig(
                "host_memory_pressure",
                quantities=(Quantity("used_bytes", 3.0 * GIB), Quantity("total_bytes", 4.0 * GIB)),
            ),
            "a: the node's memory was nearly exhausted while serving (3.00 of 4.00 GiB in use, 75.00 %)",
        ),
    ],
    ids=lambda value: value.cause if isinstance(value, Signal) else "",
)
def test_when_it_happened_stands_beside_what_happened(signal: Signal, sentence: str) -> None:
    assert judge(Evidence(signals=(signal,), phase=Phase.SERVING)).explanation == sentence


def test_quantities_of_one_fact_are_put_together() -> None:
    first = sig("ray_oom_kill", 10.0, quantities=(Quantity("used_bytes", 2.0),))
    later = sig(
        "ray_oom_kill",
        10.5,
        id="other",
        quantities=(Quantity("used_bytes", 1.0), Quantity("total_bytes", 3.0)),
    )
    found = judge(Evidence(signals=(first, later)))
    assert [(q.name, q.value) for q in found.quantities] == [("used_bytes", 2.0), ("total_bytes", 3.0)]


def test_the_node_comes_from_whoever_names_it() -> None:
    nameless = sig("ray_node_died", id="ray_raylet_terminated", node="")
    assert judge(Evidence(signals=(nameless,))).node is None
    assert judge(Evidence(signals=(nameless, DIED))).node == "b"
    lost = sig("worker_process_died", 10.2, CASCADE, id="ray_worker_lost", node="b", fatal=False)
    assert judge(Evidence(signals=(sig("worker_process_died", node="", rank=1), lost))).node == "b"
    assert judge(Evidence(signals=(sig("ray_gcs_unreachable", node=""),), head="a")).node == "a"


def test_a_relayed_error_is_told_by_its_own_rank() -> None:
    relay = sig("cuda_oom", 10.0, node="a")
    own = sig("cuda_oom", 11.0, node="b", rank=1)
    found = judge(Evidence(signals=(relay, own)))
    assert (found.node, found.rank) == ("b", 1)


def test_a_long_start_is_no_hang_and_serving_is() -> None:
    waits = sig("engine_hang", 10, SUGGESTS, id="engine_broadcast_waits", fatal=False)
    assert judge(Evidence(signals=(waits,), phase=Phase.COMPILING)).cause == "none"
    again = sig("engine_hang", 70, SUGGESTS, id="engine_broadcast_waits", fatal=False)
    assert judge(Evidence(signals=(waits,), phase=Phase.SERVING)).cause == "none"
    assert judge(Evidence(signals=(waits, again), phase=Phase.SERVING)).cause == "engine_hang"


@pytest.mark.parametrize(("after", "transient"), [(104.7, True), (100.1, False)])
def test_the_old_profiling_defect_is_not_transient(after: float, transient: bool) -> None:
    numbers = (Quantity("initial_free_bytes", 100.1 * GIB), Quantity("current_free_bytes", after * GIB))
    found = judge(Evidence(signals=(sig("memory_profiling_error", quantities=numbers),)))
    assert found.transient is transient


def test_a_suggestion_without_a_failure_is_a_warning() -> None:
    warning = sig("disk_full", proof=SUGGESTS, fatal=False)
    assert judge(Evidence(signals=(warning,))).cause == "none"
    assert judge(Evidence(signals=(warning, DEAD))).cause == "disk_full"


@pytest.mark.parametrize(("code", "transient"), [(13, True), (31, True), (79, False), (119, False)])
def test_the_code_of_a_fault_tells_whether_it_passes(code: int, transient: bool) -> None:
    fault = sig("gpu_xid", quantities=(Quantity("xid_code", float(code)),))
    assert judge(Evidence(signals=(fault,))).transient is transient


def test_every_signal_has_a_verdict() -> None:
    old = sig("ray_oom_kill", -900.0, fatal=False)
    harmless = sig("none", proof=Proof.NOISE, fatal=False)
    told = (DIED, DEAD, old, harmless, sig("worker_process_died", 10.2, id="again"))
    diagnosis, weighed = weigh(Evidence(signals=told))
    assert diagnosis.cause == "worker_process_died"
    assert [w.signal.id for w in weighed] == [s.id for s in told]
    assert [w.verdict for w in weighed] == ["root", "cascade", "set aside", "noise", "support"]
    assert all(w.why for w in weighed)


signals = st.builds(
    sig,
    cause=st.sampled_from([cause for group in ORDER for cause in group]),
    at_s=st.floats(0, 1000),
    proof=st.sampled_from(list(Proof)),
    node=st.sampled_from(["a", "b", ""]),
    rank=st.sampled_from([None, 0, 1]),
    phase=st.sampled_from([None, *Phase]),
    fatal=st.booleans(),
)
ends = st.builds(
    end,
    at_s=st.floats(0, 1000),
    unit=st.sampled_from(list(UnitName)),
    node=st.sampled_from(["a", "b"]),
    signal=st.sampled_from([None, 6, 9, 15, 64, 200]),
    ordered=st.booleans(),
)


@given(st.lists(signals, max_size=8), st.lists(ends, max_size=4), st.sampled_from([None, *Phase]))
def test_any_evidence_gives_a_whole_diagnosis(
    told: list[Signal], ended: list[UnitExit], phase: Phase | None
) -> None:
    found = judge(Evidence(signals=tuple(told), exits=tuple(ended), phase=phase, head="a"))
    assert found.cause in CAUSES
    assert found.explanation
    assert (found.confidence < 0.5) == (found.cause == "unknown")
    assert len(found.evidence) <= 5
    assert len(found.cascade) <= 8
    assert found == judge(Evidence(signals=tuple(told), exits=tuple(ended), phase=phase, head="a"))
    assert found.node != ""
    assert dataclasses.asdict(found)


def _fatal(id_: str, cause: str, source: str, quote: str, at_s: float) -> Signal:
    return Signal(
        id=id_,
        cause=cause,
        proof=Proof.PROVES,
        node="spark-a",
        source=source,
        quote=quote,
        at_s=at_s,
        generation=1,
        fatal=True,
    )


def _stop(id_: str, at_s: float) -> Signal:
    quote = "[shutdown] EngineCore: trigger received signal=SIGTERM"
    return _fatal(id_, "clean_shutdown", "serve log", quote, at_s)


def test_what_a_killed_engines_children_say_after_our_fence_is_our_own_doing() -> None:
    """The API server was killed; the engine core answers the SIGTERM of the fence."""
    stop = _stop("engine_asked_to_stop", 100.05)
    end = UnitExit("spark-a", UnitName.SERVE, 1, 100.0, signal=9)
    evidence = Evidence(signals=(stop,), exits=(end,), phase=Phase.SERVING, fence_at_s=100.0)
    assert judge(evidence).cause == "killed_unspecified"
    asked = Evidence(
        signals=(stop,),
        exits=(dataclasses.replace(end, signal=None, code=0),),
        phase=Phase.SERVING,
        fence_at_s=100.0,
    )
    assert judge(asked).cause == "clean_shutdown"


def _unreachable(at_s: float) -> Signal:
    quote = "Ray's head has not answered for 60 s"
    return _fatal("observed_gcs_unreachable", "ray_gcs_unreachable", "sparkd", quote, at_s)


def test_work_that_is_seen_until_our_own_fence_acquits_nothing_that_led_to_it() -> None:
    late = Work("spark-a", "sparkd", 104.0)
    ended = Evidence(signals=(_unreachable(100.0),), phase=Phase.SERVING, fence_at_s=100.0, works=(late,))
    assert judge(ended).cause == "ray_gcs_unreachable"


def test_what_the_engine_worked_on_after_for_minutes_did_not_lead_to_our_fence() -> None:
    works = (Work("spark-a", "sparkd", 190.0),)
    found = judge(
        Evidence(signals=(_unreachable(100.0),), phase=Phase.SERVING, fence_at_s=200.0, works=works)
    )
    assert found.cause == "unknown"
    assert "sparkd ended the engine" in found.explanation


@pytest.mark.parametrize(("before_s", "cause"), [(0.02, "killed_unspecified"), (5.0, "clean_shutdown")])
def test_who_is_ended_with_a_killed_root_was_not_asked_by_a_person(before_s: float, cause: str) -> None:
    """The service manager ends the rest of a group at once; its words may be read before the root's end."""
    stop = _stop("engine_stopping", 100.0 - before_s)
    end = UnitExit("spark-a", UnitName.SERVE, 1, 100.0, signal=9)
    found = judge(Evidence(signals=(stop,), exits=(end,), phase=Phase.SERVING, fence_at_s=100.0))

    assert found.cause == cause


@pytest.mark.parametrize(
    ("node", "error_s", "cause"),
    [
        ("a", 0.9, "engine_dead_unspecified"),  # one clock
        ("b", 0.3, "engine_dead_unspecified"),
        ("b", 0.9, "worker_process_died"),  # nobody knows which was first
    ],
)
def test_a_death_follows_another_nodes_error_only_where_their_clocks_tell_it(
    node: str, error_s: float, cause: str
) -> None:
    signals = (
        sig("engine_dead_unspecified", 9.0, CASCADE, id="engine_core_failed"),
        sig("worker_process_died", 9.5, node=node),
    )
    evidence = Evidence(signals=signals, nodes=("a", "b"), head="a", order_error_s=error_s)
    assert judge(evidence).cause == cause
