"""What survivors print after another node's end, and what only suggests: neither is the cause."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkd.engines.lines import read_line
from sparkd.intake.pump import Intake
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.signals.judge import judge
from sparkd.signals.match import Places
from sparkd.signals.model import Diagnosis, Evidence, Proof, Signal, UnitExit
from sparkd.signals.precedence import TIE_S
from sparkd.words import Phase, UnitName

CATALOGUE = packaged_catalogue()
PLACES = Places(addresses={"10.77.0.1": "a", "10.77.0.2": "b"}, ranks={0: "a", 1: "b"}, head="a")
SERVE = UnitName.SERVE
COMPLETION = (
    "NCCL WARN NET/IB: Got completion from peer 10.77.0.2<44561> with status=12 opcode=0 len=0 vendor err 129"
)
MESH = "RuntimeError: Gloo connectFullMesh failed with [/pytorch/gloo/transport/tcp/pair.cc:144] no error"
SOCKET = (
    "misc/socket.cc:441 NCCL WARN socketStartConnect: Connect to 10.77.0.2<39487> failed : Connection refused"
)
RENDEZVOUS = "torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /default_pg/0//cuda//0"
TRANSPORT = {COMPLETION: "ib_roce_error", MESH: "gloo_connect_failure", SOCKET: "nccl_socket_connect"}
MARKED = (
    "The node with node id: 3f4c and address: 10.77.0.2 and node name: b has been marked dead because the "
    "detector has missed too many heartbeats from it."
)
TOLD = "(raylet) Raylet is terminated. Termination is unexpected."
CLOSED = (
    "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.77.0.2]:57496."
)
RAY_KILL = "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."
DEAD = "RuntimeError: Engine core initialization failed. See root cause above."
HANG = "TimeoutError: RPC call to execute_model timed out."
DISK = "file_system_monitor.cc:116: /tmp is over 95% full, available space: 21.5741 GB; capacity: 460.432 GB."
TEMPLATE = (
    "ERROR 11-30 04:10:00 [serving_chat.py:241] ValueError: As of transformers v4.44, default chat template "
    "is no longer allowed, so you must provide a chat template if the tokenizer does not define one."
)


def said(at_s: float, text: str, node: str = "a", source: str = "serve log") -> tuple[Signal, ...]:
    unit, generation = (None, 0) if source == "kernel" else (SERVE, 1)
    intake = Intake(node, CATALOGUE, read_line, PLACES)
    batch = intake.feed(source, unit, generation, text.encode() + b"\n", at_s)
    return (*batch.signals, *intake.end(source, generation, at_s).signals)


def gone(at_s: float = 10.0, node: str = "b", code: int | None = None, signal: int | None = None) -> UnitExit:
    return UnitExit(node, SERVE, 1, at_s, code, signal)


def judged(
    *signals: Signal,
    exits: tuple[UnitExit, ...] = (),
    recorded: bool = False,
    phase: Phase | None = Phase.SERVING,
    error_s: float | None = None,
) -> Diagnosis:
    fence = min((end.at_s for end in exits), default=None)
    return judge(
        Evidence(
            signals=signals,
            exits=exits,
            phase=phase,
            nodes=("a", "b"),
            head="a",
            fence_at_s=fence,
            recorded=recorded,
            order_error_s=error_s if recorded else TIE_S,
        )
    )


def test_a_signal_tells_who_printed_it() -> None:
    assert [(s.node, s.writer) for s in said(1.0, MARKED)] == [("b", "a")]
    assert [(s.node, s.writer) for s in said(1.0, TOLD)] == [("", "a")]
    assert [(s.node, s.writer, s.reader) for s in said(1.0, COMPLETION)] == [("a", "a", "")]


@pytest.mark.parametrize(
    ("lines", "cause"),
    [((MARKED, TOLD, CLOSED), "ray_node_died"), ((TOLD,), "ray_node_died"), ((CLOSED,), "peer_lost")],
)
def test_the_last_words_of_what_ended_by_itself_are_evidence(lines: tuple[str, ...], cause: str) -> None:
    """The head's serve ends by itself of the worker's death; its lines are read a moment after its exit."""
    signals = [signal for line in lines for signal in said(10.05, line)]
    assert judged(*signals, exits=(gone(node="a", code=1),)).cause == cause
    # What a node that is only being fenced prints about the other one is our own doing.
    assert judged(*signals, exits=(gone(node="b", code=1),)).cause == "unknown"


@pytest.mark.parametrize("text", TRANSPORT)
@pytest.mark.parametrize(("how", "cause"), [(9, "killed_unspecified"), (11, "worker_process_died")])
@pytest.mark.parametrize("after_s", [-0.1, 0.0, 0.4, 200.0])
def test_a_survivors_transport_error_is_not_the_cause(
    text: str, how: int, cause: str, after_s: float
) -> None:
    found = judged(*said(10.0 + after_s, text), exits=(gone(signal=how),))
    assert (found.cause, found.node) == (cause, "b")
    assert [quote.text for quote in found.cascade] or after_s < 0


@pytest.mark.parametrize("text", TRANSPORT)
def test_nor_is_it_after_a_death_that_is_told_or_an_exit_without_a_word(text: str) -> None:
    died = said(10.0, "Worker proc VllmWorker-0 died unexpectedly (exit code: -9).", "b")
    assert judged(*died, *said(10.4, text)).cause == "worker_process_died"
    assert judged(*died, *said(10.4, text), recorded=True).cause == "worker_process_died"
    found = judged(*said(10.4, text), exits=(gone(code=1),))
    assert (found.cause, found.node, len(found.cascade)) == ("unknown", "b", 1)
    module = said(9.0, "ModuleNotFoundError: No module named 'msgspec'", "b")
    assert judged(*module, *said(10.4, text), exits=(gone(code=1),)).cause == "missing_python_dependency"


def test_nor_is_a_rendezvous_that_waited_for_what_was_killed() -> None:
    assert judged(*said(12.0, RENDEZVOUS), exits=(gone(signal=9),)).cause == "killed_unspecified"
    assert judged(*said(12.0, HANG), exits=(gone(signal=9),)).cause == "killed_unspecified"


@pytest.mark.parametrize(("text", "cause"), TRANSPORT.items())
def test_a_real_transport_failure_stays_the_cause(text: str, cause: str) -> None:
    before = said(9.0, text)
    assert judged(*before, exits=(gone(signal=6),)).cause == cause
    # Both sides see it, and each ends of it.
    both = (*said(9.9, text, "b"), *said(10.1, text))
    assert judged(*both, exits=(gone(10.0, code=1), gone(10.2, "a", code=1))).cause == cause
    assert judged(*both, exits=(gone(10.0, signal=6), gone(10.2, "a", signal=6))).cause == cause
    # The last words of the side that ended first are read after its exit.
    late = (*said(10.05, text, "b"), *said(10.4, text))
    assert judged(*late, exits=(gone(10.0, code=1),)).cause == cause
    # An end of the same node follows its own error, whichever is read first.
    assert judged(*said(10.1, text), exits=(gone(10.0, "a", code=1),)).cause == cause


@pytest.mark.parametrize("text", TRANSPORT)
@pytest.mark.parametrize(
    ("died_s", "error_s", "follows"),
    [
        (9.5, None, True),
        (10.0, None, True),
        (10.9, None, True),
        (11.1, None, False),
        (11.1, 2.0, True),
        (10.4, 0.0, False),
        (10.2, 0.0, True),
    ],
)
def test_of_files_times_within_the_error_are_no_order(
    text: str, died_s: float, error_s: float | None, *, follows: bool
) -> None:
    """Printed times count to the second; where it is known by how much the clocks differ, that counts."""
    died = said(died_s, "Worker proc VllmWorker-0 died unexpectedly (exit code: -9).", "b")
    found = judged(*died, *said(10.0, text), recorded=True, error_s=error_s)
    assert (found.cause, found.node) == (("worker_process_died", "b") if follows else (TRANSPORT[text], "a"))


def xid(code: int, name: str) -> str:
    return f"NVRM: Xid (PCI:000f:01:00): {code}, pid=77, name={name}, Ch 00000008, MMU Fault"


@pytest.mark.parametrize(
    ("name", "at_s", "texts", "cause"),
    [
        ("jupyter-kernel", 400.0, (RAY_KILL,), "ray_oom_kill"),
        ("jupyter-kernel", 995.0, (RAY_KILL,), "ray_oom_kill"),
        ("jupyter-kernel", 995.0, (HANG,), "engine_hang"),
        ("python3", 400.0, (RAY_KILL,), "ray_oom_kill"),
        ("VLLM::Worker_TP", 400.0, (RAY_KILL,), "ray_oom_kill"),
        ("VLLM::Worker_TP", 400.0, ("Worker proc VllmWorker-0 died unexpectedly.",), "worker_process_died"),
        ("VLLM::Worker_TP", 995.0, (RAY_KILL,), "gpu_xid"),
        ("VLLM::Worker_TP", 400.0, (HANG,), "gpu_xid"),
        ("VLLM::Worker_TP", 400.0, (DEAD,), "gpu_xid"),
        ("<unknown>", 400.0, (HANG,), "gpu_xid"),
    ],
)  # fmt: skip
def test_a_passing_fault_explains_what_stood_still(
    name: str, at_s: float, texts: tuple[str, ...], cause: str
) -> None:
    fault = said(at_s, xid(31, name), source="kernel")
    assert fault
    assert judged(*fault, *(s for text in texts for s in said(1000.0, text))).cause == cause


def test_a_death_that_follows_the_hang_leaves_the_fault_to_explain_it() -> None:
    fault = said(400.0, xid(31, "VLLM::Worker_TP"), source="kernel")
    died = said(1002.0, "Worker proc VllmWorker-0 died unexpectedly.")
    assert judged(*fault, *said(1000.0, HANG), *died).cause == "gpu_xid"


def test_of_a_log_in_which_no_engine_speaks_any_fault_is_the_subject() -> None:
    fault = said(1.0, xid(31, "jupyter-kernel"), source="kernel")
    found = judged(*fault, recorded=True, phase=None)
    assert (found.cause, found.confidence) == ("gpu_xid", 0.6)
    assert judged(*fault, recorded=True).cause == "none"


@pytest.mark.parametrize(("text", "cause"), [(DISK, "disk_full"), (TEMPLATE, "tokenizer_or_template_error")])
@pytest.mark.parametrize(
    ("ended", "end"),
    [
        (gone(130.0, code=1), "unknown"),
        (gone(130.0, signal=9), "killed_unspecified"),
        (gone(130.0, signal=11), "worker_process_died"),
    ],
)
def test_what_only_suggests_is_a_candidate(text: str, cause: str, ended: UnitExit, end: str) -> None:
    found = judged(*said(100.0, text), exits=(ended,))
    assert found.cause == end
    assert found.candidates[:1] == ((cause,) if found.confidence < 0.9 else ())
    assert found.candidates != (cause,), "what it usually is stays in view"


def test_a_suggestion_of_why_a_start_waits_still_explains_a_hang() -> None:
    retries = said(
        100.0, "(ReadTimeoutError())' thrown while requesting HEAD https://huggingface.co/x/config.json"
    )
    hang = replace(said(130.0, HANG)[0], proof=Proof.PROVES)
    for exits in ((), (gone(133.0, signal=9),)):
        found = judge(Evidence(signals=(*retries, hang), exits=exits, phase=Phase.RESOLVING_CONFIG))
        assert found.cause == "hf_network"
