"""The stand-in's faults: each leaves the traces of the real failure, on the node where it belongs."""

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ports import free_port
from standin import proto, rpc
from standin.run import BIN, Program, alive, get, metric
from standin.wait import wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(90)]

HEAD, WORKER = "127.0.0.2", "127.0.0.3"
FAST = {"SPARKD_STANDIN_SPEED": "4", "RAY_AUTH_MODE": "disabled", "RAY_DEDUP_LOGS": "0"}
QUICK_CHECKS = {
    "RAY_health_check_initial_delay_ms": "200",
    "RAY_health_check_period_ms": "200",
    "RAY_health_check_timeout_ms": "200",
    "RAY_health_check_failure_threshold": "3",
}


class Bed:
    """Two nodes of one cluster on this machine, and everything that a test starts on them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.programs: list[Program] = []
        self.faults = directory / "faults.json"
        self.gcs = f"{HEAD}:{free_port(HEAD)}"
        self.url = f"http://{HEAD}:{free_port(HEAD)}"
        self.environment = {**os.environ, **FAST, **QUICK_CHECKS, "SPARKD_STANDIN_FAULTS": str(self.faults)}

    def start(self, *command: str, **more: str) -> Program:
        program = Program(list(command), {**self.environment, **more})
        self.programs.append(program)
        return program

    def arm(self, *faults: dict[str, Any]) -> None:
        draft = self.directory / "draft.json"
        draft.write_text(json.dumps({"faults": faults}))
        draft.replace(self.faults)

    def ray(self, address: str, **more: str) -> Program:
        port = self.gcs.rpartition(":")[2]
        how = ["--head", f"--port={port}"] if address == HEAD else [f"--address={self.gcs}"]
        common = [f"--node-ip-address={address}", "--num-gpus=1", f"--temp-dir={self.directory / address}"]
        return self.start(f"{BIN}/ray", "start", *how, *common, "--block", "--disable-usage-stats", **more)

    def cluster(self, **more: str) -> tuple[Program, Program]:
        head = self.ray(HEAD, **more)
        head.err.wait_for("Ray runtime started")
        worker = self.ray(WORKER, **more)
        worker.err.wait_for("Ray runtime started")
        return head, worker

    def serve(self, *options: str, **more: str) -> Program:
        command = [f"{BIN}/vllm", "serve", "a/model", "--host", HEAD, "--port", self.url.rpartition(":")[2]]
        command += ["--tensor-parallel-size", "2", "--distributed-executor-backend", "ray"]
        return self.start(*command, *options, RAY_ADDRESS=self.gcs, VLLM_HOST_IP=HEAD, **more)

    def raylet_out(self, address: str) -> str:
        return (self.directory / address / "session_latest" / "logs" / "raylet.out").read_text()

    def nodes(self) -> dict[str, int]:
        """Address -> state (0 alive, 1 dead)."""
        reply = rpc.Client(self.gcs).raw(rpc.NODE_INFO + "GetAllNodeInfo")
        nodes = [dict(proto.fields(value)) for number, value in proto.fields(reply) if number == 2]
        return {node[2].decode(): node.get(7, 0) for node in nodes}

    def complete(self, tokens: int = 3, timeout: float = 5.0) -> int:
        body = {"prompt": "hello you", "max_tokens": tokens, "ignore_eos": True}
        return get(self.url + "/v1/completions", body, timeout)[0]

    def clean(self) -> None:
        for program in reversed(self.programs):
            program.clean()


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    made = Bed(tmp_path)
    try:
        yield made
    finally:
        made.clean()


def ready(program: Program) -> None:
    program.both.wait_for("Application startup complete", 15)


def test_two_nodes_serve(bed: Bed) -> None:
    head, worker = bed.cluster()
    serve = bed.serve()
    ready(serve)
    assert bed.nodes() == {HEAD: 0, WORKER: 0}
    assert bed.complete() == 200
    assert "ray::RayWorkerProc" in " ".join(head.tree().values())
    assert "ray::RayWorkerProc" in " ".join(worker.tree().values())
    serve.out.wait_for(f", ip={WORKER})\x1b[0m (Worker_TP1 pid=", 2)
    bars = [line for line in serve.err.all() if "Loading safetensors checkpoint shards:" in line]
    assert "100% Completed | 39/39 [" in bars[-1]


def test_ray_memory_kill_in_graph_capture(bed: Bed) -> None:
    """The numbers are in the raylet's log on that node; vLLM's own output has no word of memory."""
    bed.arm({"kind": "ray_oom_kill", "phase": "capturing_graphs", "node": WORKER})
    bed.cluster()
    serve = bed.serve()
    assert serve.wait_exit(20) == 1
    text = serve.both.text()
    assert "RayWorkerProc rank=[1] died unexpectedly, shutting down executor." in text
    assert "Engine core initialization failed. See root cause above. Failed core proc(s): {}" in text
    assert "OOM" not in text
    log = bed.raylet_out(WORKER)
    assert "was 113.78GB used / 119.70GB limit (0.950543)" in log
    used = int(re.findall(r"OOM kill reason: Memory usage (\d+)B exceeded threshold of \d+B", log)[0])
    assert round(used / (1 << 30), 2) == 113.78
    wait_until(lambda: "killed due to memory pressure (OOM)" in bed.raylet_out(WORKER), 5)
    assert "OOM" not in bed.raylet_out(HEAD)


@pytest.mark.parametrize(
    ("options", "more", "code"),
    [
        ([], {}, 1),
        (["--gpu-memory-utilization", "0.85"], {}, None),
        (["--kv-cache-memory-bytes", "20000000000"], {}, None),
        ([], {"RAY_memory_usage_threshold": "0.99"}, None),
        ([], {"RAY_memory_monitor_refresh_ms": "0"}, None),
    ],
)
def test_a_changed_setting_cures(
    bed: Bed, options: list[str], more: dict[str, str], code: int | None
) -> None:
    params = {"used_from_settings": True}
    bed.arm({"kind": "ray_oom_kill", "phase": "capturing_graphs", "params": params})
    bed.cluster(**more)
    serve = bed.serve(*options)
    if code is None:
        ready(serve)
        assert bed.complete() == 200
    else:
        assert serve.wait_exit(20) == code


def test_times_limits_a_fault(bed: Bed) -> None:
    bed.arm({"kind": "worker_sigkill", "phase": "profiling", "times": 1})
    bed.cluster()
    assert bed.serve().wait_exit(20) == 1
    ready(bed.serve())


def test_a_held_phase_goes_on_when_it_is_let_go(bed: Bed) -> None:
    bed.arm({"kind": "hold", "phase": "capturing_graphs", "node": WORKER})
    bed.cluster()
    serve = bed.serve()
    serve.both.wait_for("Graph capturing finished", 15)
    assert not [line for line in serve.both.all() if "Application startup complete" in line]
    bed.arm()
    ready(serve)


def test_generation_chooses_the_start(bed: Bed) -> None:
    bed.arm({"kind": "cuda_oom", "phase": "profiling", "generation": 2})
    bed.cluster()
    first = bed.serve()
    ready(first)
    first.kill(signal.SIGTERM)
    assert first.wait_exit(10) == 0
    second = bed.serve()
    assert second.wait_exit(20) == 1
    text = second.both.text()
    assert "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 119.70 GiB" in text


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ({"kind": "nccl_init_failure", "phase": "init_distributed"}, "NCCL error: unhandled system error"),
        ({"kind": "gloo_connect_failure", "phase": "init_distributed"}, "Gloo connectFullMesh failed"),
        ({"kind": "wrong_interface", "phase": "init_distributed"}, "Unable to find address for: "),
        (
            {"kind": "startup_free_memory_too_low", "phase": "init_distributed"},
            "on startup is less than desired GPU memory utilization (0.92, 110.12 GiB)",
        ),
        ({"kind": "weights_corrupt", "phase": "loading_weights"}, "deserializing header: header too large"),
        (
            {"kind": "weights_missing", "phase": "loading_weights_half"},
            "FileNotFoundError: Weight files referenced in index but missing: ",
        ),
        (
            {"kind": "ray_oom_kill", "phase": "loading_weights_half"},
            "ray.exceptions.OutOfMemoryError: 1 worker(s)",
        ),
        ({"kind": "worker_sigkill", "phase": "loading_weights_half"}, "ray.exceptions.ActorDiedError: "),
        (
            {"kind": "kv_cache_too_small"},
            "ValueError: To serve at least one request with the model's max seq len",
        ),
        ({"kind": "kv_cache_none"}, "ValueError: No available memory for the cache blocks."),
        (
            {"kind": "model_unsupported"},
            "Model architectures ['FooBarForCausalLM'] are not supported for now.",
        ),
        ({"kind": "port_in_use"}, "OSError: [Errno 98] Address already in use"),
    ],
)
def test_failed_starts(bed: Bed, fault: dict[str, Any], text: str) -> None:
    bed.arm(fault)
    bed.cluster()
    serve = bed.serve()
    assert serve.wait_exit(20) == 1
    assert text in serve.both.text()


def test_start_up_hang(bed: Bed) -> None:
    """One rank raises, the executor waits for ever."""
    bed.arm({"kind": "startup_hang", "phase": "profiling", "rank": 1})
    bed.cluster()
    serve = bed.serve()
    serve.out.wait_for("WorkerProc hit an exception.", 15)
    with pytest.raises(AssertionError):
        serve.wait_exit(1.0)


DEATHS: dict[str, Callable[[Program, Program, Program], int]] = {
    "worker": lambda _head, worker, _serve: worker.child("ray::RayWorkerProc"),
    "raylet": lambda _head, worker, _serve: worker.child("raylet"),
    "core": lambda _head, _worker, serve: serve.child("VLLM::EngineCore"),
}


@pytest.mark.parametrize("victim", DEATHS)
def test_real_signals_while_serving(bed: Bed, victim: str) -> None:
    head, worker = bed.cluster()
    serve = bed.serve()
    ready(serve)
    os.kill(DEATHS[victim](head, worker, serve), signal.SIGKILL)
    assert serve.wait_exit(15) == 0
    serve.out.wait_for("EngineDeadError", 2)
    if victim != "core":
        serve.out.wait_for("RayWorkerProc rank=[1] died unexpectedly", 2)


def test_stopped_raylet_is_declared_dead(bed: Bed) -> None:
    _, worker = bed.cluster()
    serve = bed.serve()
    ready(serve)
    os.kill(worker.child("raylet"), signal.SIGSTOP)
    wait_until(lambda: bed.nodes()[WORKER] == 1, 10, "the node dead")
    assert serve.wait_exit(10) == 0


def test_gcs_death(bed: Bed) -> None:
    """`ray start --block` on the head ends at once; the other node's raylet gives up after its patience."""
    head, worker = bed.cluster(RAY_gcs_rpc_server_reconnect_timeout_s="1")
    os.kill(head.child("gcs_server"), signal.SIGKILL)
    assert head.wait_exit(10) == 1
    assert worker.wait_exit(10) == 1
    assert "Failed to connect to GCS within 1 seconds." in bed.raylet_out(WORKER)


def test_a_fault_armed_while_serving(bed: Bed) -> None:
    bed.cluster()
    serve = bed.serve()
    ready(serve)
    bed.arm({"kind": "ray_oom_kill", "phase": "serving", "node": HEAD})
    assert serve.wait_exit(10) == 0
    assert "was 113.78GB used" in bed.raylet_out(HEAD)


def test_hang_while_serving(bed: Bed) -> None:
    """Health stays 200, tokens stop, and the RPC's own deadline ends it with 0."""
    bed.cluster()
    serve = bed.serve(VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS="2")
    ready(serve)
    assert bed.complete() == 200
    bed.arm({"kind": "hang", "phase": "serving", "rank": 1})
    assert bed.complete(timeout=0.5) == 0
    page = get(bed.url + "/metrics")[1]
    assert get(bed.url + "/health")[0] == 200
    assert metric(page, "vllm:generation_tokens_total") == 3
    assert serve.wait_exit(10) == 0
    serve.out.wait_for("TimeoutError: RPC call to sample_tokens timed out.", 2)


def test_killed_api_server_leaves_the_engine(bed: Bed) -> None:
    head, worker = bed.cluster()
    serve = bed.serve()
    ready(serve)
    orphans = [serve.child("VLLM::EngineCore"), head.child("RayWorkerProc"), worker.child("RayWorkerProc")]
    bed.arm({"kind": "serve_sigkill", "phase": "serving"})
    assert serve.wait_exit(10) == -signal.SIGKILL
    with pytest.raises(AssertionError):
        wait_until(lambda: not all(map(alive, orphans)), 0.7)


def test_join_refused_by_token(bed: Bed) -> None:
    head = bed.ray(HEAD, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="secret")
    head.err.wait_for("Ray runtime started")
    wrong = bed.ray(WORKER, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="wrong", SPARKD_STANDIN_SPEED="50")
    assert wrong.wait_exit(15) == 1
    assert "InvalidAuthToken: Authentication token is missing or incorrect" in wrong.err.text()
    right = bed.ray(WORKER, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="secret")
    right.err.wait_for("Ray runtime started")


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("ray_join_refused", "InvalidAuthToken: Authentication token is missing or incorrect"),
        ("ray_version_mismatch", "Could not read 'temp_dir' from GCS. Did GCS start successfully?"),
    ],
)
def test_failed_joins(bed: Bed, fault: str, text: str) -> None:
    bed.arm({"kind": fault, "node": WORKER})
    bed.ray(HEAD).err.wait_for("Ray runtime started")
    worker = bed.ray(WORKER, SPARKD_STANDIN_SPEED="50")
    assert worker.wait_exit(15) == 1
    assert text in worker.err.text()


def test_a_worker_that_was_first_joins_when_the_head_comes(bed: Bed) -> None:
    worker = bed.ray(WORKER)
    worker.err.wait_for("rpc_client.h:153: Failed to connect to GCS at address ")
    bed.ray(HEAD).err.wait_for("Ray runtime started")
    worker.err.wait_for("Ray runtime started")
    assert bed.nodes() == {HEAD: 0, WORKER: 0}


def test_wrong_address_is_registered(bed: Bed) -> None:
    bed.arm({"kind": "ray_wrong_address", "node": WORKER, "params": {"address": "127.0.0.9"}})
    bed.cluster()
    assert bed.nodes().keys() == {HEAD, "127.0.0.9"}


def test_never_joining_stops_on_sigterm(bed: Bed) -> None:
    bed.arm({"kind": "ray_never_joins", "node": WORKER})
    bed.ray(HEAD).err.wait_for("Ray runtime started")
    worker = bed.ray(WORKER)
    serve = bed.serve(SPARKD_STANDIN_SPEED="50")
    serve.out.wait_for("Waiting for creating a placement group of specs for ", 10)
    assert bed.nodes() == {HEAD: 0}
    worker.kill(signal.SIGTERM)
    assert worker.wait_exit(5) == 1


class TestNativeTwoNodes:
    """The mp backend over two nodes: rank 1 is a headless `vllm serve` of its own."""

    def pair(self, bed: Bed) -> tuple[Program, Program]:
        common = ["serve", "a/model", "--tensor-parallel-size", "2", "--distributed-executor-backend", "mp"]
        common += ["--nnodes", "2", "--master-addr", HEAD, "--master-port", str(free_port(HEAD))]
        port = bed.url.rpartition(":")[2]
        rank1 = bed.start(f"{BIN}/vllm", *common, "--node-rank", "1", "--headless", VLLM_HOST_IP=WORKER)
        rank0 = [*common, "--node-rank", "0", "--host", HEAD, "--port", port]
        head = bed.start(f"{BIN}/vllm", *rank0, VLLM_HOST_IP=HEAD)
        ready(head)
        return head, rank1

    def test_remote_death_shows_only_with_a_request(self, bed: Bed) -> None:
        head, rank1 = self.pair(bed)
        assert bed.complete() == 200
        os.kill(rank1.child("VLLM::Worker_TP1"), signal.SIGKILL)
        assert rank1.wait_exit(10) == 0
        rank1.out.wait_for("Worker proc VllmWorker-1 died unexpectedly (exit code: None)", 2)
        assert get(bed.url + "/health")[0] == 200
        assert bed.complete() == 500
        assert head.wait_exit(10) == 0
        head.out.wait_for("Connection closed by peer [127.0.0.3]", 2)

    def test_head_death_ends_the_headless_one(self, bed: Bed) -> None:
        head, rank1 = self.pair(bed)
        head.kill(signal.SIGTERM)
        assert head.wait_exit(10) == 0
        assert rank1.wait_exit(10) == 0
