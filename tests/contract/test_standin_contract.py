"""One list of expectations, run against the stand-in and against the real Ray and vLLM.

What the fast tests rely on must be true of both. The real side needs SPARKD_ENGINE_ENV and takes minutes.
"""

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ports import free_port
from standin import proto, rpc, sides
from standin.run import Program, alive, get, metric
from standin.sides import Server, Side
from standin.wait import wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

PHASE_LINES = [
    "non-default args: {'model_tag': ",
    "Resolved architecture: Qwen3ForCausalLM",
    "Using max model len 512",
    "Enforce eager set, disabling torch.compile, CUDAGraphs",
    "Initializing a V1 LLM engine (v0.32.0) with config: model=",
    "world_size=1 rank=0 local_rank=0 distributed_init_method=file:///tmp/vllm_dist_",
    "rank 0 in world size 1 is assigned as DP rank 0, PP rank 0",
    "Starting to load model ",
    "Checkpoint size: ",
    "Loading weights took ",
    " KV cache size: ",
    "init engine (profile, create kv cache, warmup model) took ",
    "Supported tasks: ['generate']",
    "Starting vLLM server on http://127.0.0.2:",
    "Available routes are:",
]
METRICS = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:num_preemptions_total",
    "vllm:request_success_total",
    "vllm:engine_sleep_state",
    "vllm:cache_config_info",
    "vllm:time_to_first_token_seconds_count",
    "process_start_time_seconds",
    "process_resident_memory_bytes",
]


@pytest.fixture(scope="module", params=["standin", pytest.param("real", marks=pytest.mark.real)])
def side(request: pytest.FixtureRequest) -> Side:
    return sides.standin() if request.param == "standin" else sides.real()


@pytest.fixture(scope="module")
def server(side: Side) -> Iterator[Server]:
    """One healthy server for all checks that leave it healthy."""
    started = sides.serve(side)
    try:
        started.ready()
        yield started
    finally:
        started.program.clean()


@pytest.fixture
def fresh(side: Side) -> Iterator[Server]:
    """A server of a test's own, to kill."""
    started = sides.serve(side)
    try:
        started.ready()
        yield started
    finally:
        started.program.clean()


def finished(side: Side, command: list[str]) -> Program:
    program = side.start(command)
    try:
        program.wait_exit(side.patience_s)
    finally:
        program.clean()
    return program


class TestRayCommandLine:
    @pytest.mark.parametrize(
        ("arguments", "code", "text"),
        [
            (["--version"], 0, "ray, version 2.60.0"),
            (["start", "--head", "--no-such-option", "3"], 2, "No such option '--no-such-option'."),
            (
                ["start", "--head", "--port", "x"],
                2,
                "Invalid value for '--port': 'x' is not a valid integer.",
            ),
            (["start", "--head", "--port"], 2, "Option '--port' requires an argument."),
            (["start"], 1, "is a required flag unless starting a head node"),
            (["no-such-command"], 2, "No such command 'no-such-command'."),
        ],
    )
    def test_answers(self, side: Side, arguments: list[str], code: int, text: str) -> None:
        program = finished(side, [side.ray, *arguments])
        wait_until(lambda: text in program.both.text(), 5, program.both.text())
        assert program.process.returncode == code


@pytest.fixture(scope="class")
def head(side: Side) -> Iterator[tuple[Program, str, Path]]:
    with tempfile.TemporaryDirectory(prefix="r") as directory:
        program, gcs = sides.ray_head(side, Path(directory))
        try:
            program.both.wait_for("This command will now block forever", side.patience_s)
            yield program, gcs, Path(directory)
        finally:
            program.clean()


class TestRayHead:
    def test_node_table_has_the_fields_that_matter(self, head: tuple[Program, str, Path]) -> None:
        reply = rpc.Client(head[1]).raw(rpc.NODE_INFO + "GetAllNodeInfo")
        (node,) = [dict(proto.fields(value)) for number, value in proto.fields(reply) if number == 2]
        assert len(node[1]) == 28
        assert node[2].decode() == sides.ADDRESS
        assert node.get(7, 0) == 0
        assert node[25] == 1
        assert node[23] > 1_600_000_000_000
        assert {5, 8, 12, 26} <= node.keys()

    def test_node_table_counts_the_gpu(self, head: tuple[Program, str, Path]) -> None:
        reply = rpc.Client(head[1]).raw(rpc.NODE_INFO + "GetAllNodeInfo")
        (node,) = [value for number, value in proto.fields(reply) if number == 2]
        pairs = [dict(proto.fields(value)) for number, value in proto.fields(node) if number == 11]
        resources = {pair[1].decode(): pair.get(2, 0.0) for pair in pairs}
        assert resources["GPU"] == 1.0
        assert resources[f"node:{sides.ADDRESS}"] == 1.0
        assert {"CPU", "memory", "object_store_memory"} <= resources.keys()

    def test_check_alive_tells_the_version(self, head: tuple[Program, str, Path]) -> None:
        reply = dict(proto.fields(rpc.Client(head[1]).raw(rpc.NODE_INFO + "CheckAlive")))
        assert reply[2].decode() == "2.60.0"

    def test_gcs_and_raylet_answer_health_checks(self, head: tuple[Program, str, Path]) -> None:
        reply = rpc.Client(head[1]).raw(rpc.NODE_INFO + "GetAllNodeInfo")
        (node,) = [dict(proto.fields(value)) for number, value in proto.fields(reply) if number == 2]
        for address in (head[1], f"{sides.ADDRESS}:{node[5]}"):
            assert rpc.Client(address).raw(rpc.HEALTH) == proto.HEALTH_SERVING

    def test_raylet_log_tells_the_memory_threshold(self, head: tuple[Program, str, Path]) -> None:
        log = head[2] / "session_latest" / "logs" / "raylet.out"
        wanted = "threshold_memory_monitor.cc:53: ThresholdMemoryMonitor initialized with usage threshold at "
        wait_until(lambda: wanted in log.read_text(), 10, "the monitor's line")

    def test_killed_raylet_ends_ray_start_with_one(self, head: tuple[Program, str, Path], side: Side) -> None:
        program = head[0]
        raylet = program.child("raylet")
        rpc_client = rpc.Client(head[1])

        os.kill(raylet, signal.SIGKILL)
        assert program.wait_exit(30) == 1
        program.both.wait_for("Some Ray subprocesses exited unexpectedly", 5)
        with pytest.raises(grpc.RpcError):
            wait_until(lambda: not rpc_client.raw(rpc.NODE_INFO + "CheckAlive"), 10)


class TestRayStops:
    def test_sigterm_ends_everything_with_one(self, side: Side) -> None:
        with tempfile.TemporaryDirectory(prefix="r") as directory:
            program, _ = sides.ray_head(side, Path(directory))
            try:
                program.both.wait_for("This command will now block forever", side.patience_s)
                pids = [program.child("gcs_server"), program.child("raylet")]
                program.kill(signal.SIGTERM)
                assert program.wait_exit(30) == 1
                wait_until(lambda: not any(map(alive, pids)), 20, "gcs_server and raylet gone")
            finally:
                program.clean()


class TestVllmCommandLine:
    def test_version(self, side: Side) -> None:
        program = finished(side, [side.vllm, "--version"])
        program.out.wait_for("0.32.0", 2)
        assert program.process.returncode == 0

    def test_unknown_option(self, side: Side) -> None:
        program = finished(side, [side.vllm, "serve", side.model, "--no-such-flag", "3"])
        program.err.wait_for("vllm: error: unrecognized arguments: --no-such-flag 3", 2)
        assert program.process.returncode == 2

    def test_too_long_context(self, side: Side) -> None:
        program = finished(side, [side.vllm, "serve", side.model, "--max-model-len", "999999"])
        program.err.wait_for("User-specified max_model_len (999999) is greater than the derived", 2)
        assert program.process.returncode == 1

    def test_missing_model(self, side: Side) -> None:
        program = finished(side, [side.vllm, "serve", "/no/such/model"])
        program.err.wait_for("Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/no/such", 2)
        assert program.process.returncode == 1


class TestServing:
    def test_phase_lines_come_in_order_on_standard_output(self, server: Server) -> None:
        lines, at = server.program.out.all(), 0
        for wanted in PHASE_LINES:
            found = [n for n, line in enumerate(lines) if wanted in line and n >= at]
            assert found, f"{wanted!r} not after line {at}: {lines[at : at + 5]}"
            at = found[0]

    def test_progress_is_on_standard_error(self, server: Server) -> None:
        bars = [line for line in server.program.err.all() if "Loading safetensors checkpoint shards:" in line]
        assert "0% Completed | 0/" in bars[0]
        assert "100% Completed | " in bars[-1]
        assert not any("Loading safetensors checkpoint" in line for line in server.program.out.all())

    @pytest.mark.parametrize(
        ("path", "status"),
        [
            *((path, 200) for path in ("/health", "/ping", "/version", "/load", "/metrics", "/v1/models")),
            *((path, 404) for path in ("/is_sleeping", "/server_info", "/no/such")),
        ],
    )
    def test_status(self, server: Server, path: str, status: int) -> None:
        assert get(server.url + path)[0] == status

    def test_models(self, server: Server) -> None:
        (card,) = json.loads(get(server.url + "/v1/models")[1])["data"]
        assert (card["id"], card["object"], card["max_model_len"]) == ("m", "model", 512)

    def test_version(self, server: Server) -> None:
        assert json.loads(get(server.url + "/version")[1]) == {"version": "0.32.0"}

    def test_completion(self, server: Server) -> None:
        body = {"model": "m", "prompt": "the quick brown fox", "max_tokens": 4, "ignore_eos": True}
        answers = [get(server.url + "/v1/completions", body | {"temperature": 0}, 60) for _ in range(2)]
        first, second = (json.loads(text) for _, text in answers)
        assert answers[0][0] == 200
        assert first["object"] == "text_completion"
        assert first["choices"][0]["finish_reason"] == "length"
        assert first["usage"]["completion_tokens"] == 4
        assert first["choices"][0]["text"] == second["choices"][0]["text"]

    def test_chat(self, server: Server) -> None:
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
        status, text = get(server.url + "/v1/chat/completions", body | {"ignore_eos": True}, 60)
        answer = json.loads(text)
        assert (status, answer["object"]) == (200, "chat.completion")
        assert answer["choices"][0]["message"]["role"] == "assistant"
        assert answer["usage"]["completion_tokens"] == 3

    def test_stream(self, server: Server) -> None:
        body = {"model": "m", "prompt": "hello", "max_tokens": 3, "stream": True, "ignore_eos": True}
        status, text = get(server.url + "/v1/completions", body, 60)
        events = [line.removeprefix("data: ") for line in text.split("\n") if line]
        assert status == 200
        assert events[-1] == "[DONE]"
        assert json.loads(events[-2])["choices"][0]["finish_reason"] == "length"

    def test_refusals(self, server: Server) -> None:
        url = server.url + "/v1/completions"
        assert get(url, {"model": "nope", "prompt": "x"})[0] == 404
        status, text = get(url, {"model": "m", "prompt": "x", "max_tokens": 5000})
        assert status == 400
        assert json.loads(text)["error"]["type"] == "BadRequestError"

    def test_metrics_names_and_labels(self, server: Server) -> None:
        page = get(server.url + "/metrics")[1]
        for name in METRICS:
            assert f"\n{name}" in page, name
        assert 'vllm:num_requests_running{engine="0",model_name="m"}' in page
        assert "gpu_memory_utilization=" in page

    def test_metrics_count_tokens(self, server: Server) -> None:
        before = metric(get(server.url + "/metrics")[1], "vllm:generation_tokens_total")
        get(
            server.url + "/v1/completions",
            {"model": "m", "prompt": "x", "max_tokens": 5, "ignore_eos": True},
            60,
        )

        def counted() -> bool:
            return metric(get(server.url + "/metrics")[1], "vllm:generation_tokens_total") == before + 5

        wait_until(counted, 10, "five more tokens")

    def test_names_of_the_processes(self, server: Server) -> None:
        server.program.child("VLLM::EngineCore", 5)
        server.program.child("VLLM::Worker", 5)

    def test_port_in_use(self, server: Server) -> None:
        second = sides.serve(server.side, port=int(server.url.rpartition(":")[2]))
        try:
            assert second.program.wait_exit(server.side.patience_s) == 1
            second.program.err.wait_for("OSError: [Errno 98] Address already in use", 2)
        finally:
            second.program.clean()


class TestDeaths:
    def test_before_readiness_clients_are_refused(self, side: Side) -> None:
        started = sides.serve(side)
        try:
            started.program.out.wait_for("non-default args", side.patience_s)
            assert started.health() == 0
        finally:
            started.program.clean()

    @pytest.mark.parametrize("victim", ["VLLM::EngineCore", "VLLM::Worker"])
    def test_a_death_while_serving_exits_zero(self, fresh: Server, victim: str) -> None:

        os.kill(fresh.program.child(victim), signal.SIGKILL)
        assert fresh.program.wait_exit(30) == 0
        fresh.program.out.wait_for("EngineDeadError", 2)
        assert fresh.health() == 0

    def test_sigterm_exits_zero_and_leaves_nothing(self, fresh: Server) -> None:
        pids = list(fresh.program.tree())
        fresh.program.kill(signal.SIGTERM)
        assert fresh.program.wait_exit(30) == 0
        wait_until(lambda: not any(map(alive, pids)), 20, "children gone")
        fresh.program.out.wait_for("[shutdown] API server: shutdown triggered", 2)

    def test_a_killed_api_server_leaves_orphans(self, fresh: Server) -> None:
        orphans = [fresh.program.child("VLLM::EngineCore"), fresh.program.child("VLLM::Worker")]
        fresh.program.kill(signal.SIGKILL)
        assert fresh.program.wait_exit(10) == -signal.SIGKILL
        with pytest.raises(AssertionError):
            wait_until(lambda: not all(map(alive, orphans)), 1.0)

    def test_a_killed_core_during_the_start_exits_one(self, side: Side) -> None:

        started = sides.serve(side, "--load-format", "auto")
        try:
            os.kill(started.program.child("VLLM::EngineCore", side.patience_s), signal.SIGKILL)
            assert started.program.wait_exit(30) == 1
            started.program.both.wait_for("Engine core initialization failed. See root cause above.", 2)
        finally:
            started.program.clean()


def test_gcs_unreachable_ends_a_join(side: Side) -> None:
    """Each try takes 41 seconds, and there are 20 unless told otherwise: a join against nothing hangs."""
    gcs = f"{sides.ADDRESS}:{free_port(sides.ADDRESS)}"
    faster = {"SPARKD_STANDIN_SPEED": "20"} if side.name == "stand-in" else {}
    command = [side.ray, "start", f"--address={gcs}", f"--node-ip-address={sides.ADDRESS}", "--block"]
    program = side.start(command, RAY_gcs_server_port_wait_time_s="1", **faster)
    try:
        assert program.wait_exit(120) == 1
        lines = [f"rpc_client.h:153: Failed to connect to GCS at address {gcs} within 5 seconds."]
        lines += [
            "gcs_client.cc:210: Failed to get cluster ID from GCS server: TimedOut: Timed out while waiting"
        ]
        lines += ["RuntimeError: Failed to connect to GCS. Last connection error:"]
        for line in lines:
            program.err.wait_for(line, 2)
    finally:
        program.clean()
