"""The real outputs of real failures: each gives its cause, phase and node."""

import pytest

from signals import replay
from signals.replay import ONE_HOST, Log
from sparkd.cli.reading import Diagnoser
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.signals.model import Diagnosis, Proof, Signal
from sparkd.words import Phase, UnitName


def raylet(file: str, node: str = "spark-a") -> Log:
    return Log(file, node, "raylet.out", UnitName.RAY)


def ray(file: str, node: str = "spark-b") -> Log:
    return Log(file, node, "ray log", UnitName.RAY)


CONFIG = Phase.RESOLVING_CONFIG
SINGLE = [
    # (log, cause, phase, node); None = not stated
    ("vllm-fail-ray-worker-actor-sigkill.log", "worker_process_died", Phase.SERVING, "spark-b"),
    ("vllm-fail-ray-worker-node-raylet-sigkill.log", "ray_node_died", Phase.SERVING, "spark-b"),
    ("vllm-fail-ray-worker-node-powerloss.log", "ray_node_died", Phase.SERVING, "spark-b"),
    ("vllm-fail-ray-gcs-sigkill.log", "ray_gcs_unreachable", Phase.SERVING, "spark-a"),
    ("vllm-fail-worker-sigkill-mp.log", "worker_process_died", Phase.SERVING, "spark-a"),
    ("vllm-fail-worker-sigkill-idle-mp.log", "worker_process_died", Phase.SERVING, "spark-a"),
    ("vllm-fail-enginecore-sigkill.log", "worker_process_died", Phase.SERVING, "spark-a"),
    ("vllm-keep-alive-on-engine-death.log", "worker_process_died", Phase.SERVING, "spark-a"),
    ("vllm-fail-apiserver-sigkill.log", "killed_unspecified", Phase.SERVING, "spark-a"),
    ("vllm-fail-worker-hang-sigstop.log", "engine_hang", Phase.SERVING, None),
    ("vllm-fail-kv-cache-too-small.log", "kv_cache_too_small", Phase.ALLOCATING_KV_CACHE, "spark-a"),
    (
        "vllm-fail-kv-cache-no-memory-cpu.log",
        "startup_free_memory_too_low",
        Phase.INIT_DISTRIBUTED,
        "spark-a",
    ),
    (
        "vllm-fail-corrupt-safetensors.log",
        "weights_missing_or_corrupt",
        Phase.LOADING_WEIGHTS,
        "spark-a",
    ),
    (
        "vllm-fail-truncated-safetensors.log",
        "weights_missing_or_corrupt",
        Phase.LOADING_WEIGHTS,
        "spark-a",
    ),
    ("vllm-fail-missing-shard.log", "weights_missing_or_corrupt", Phase.LOADING_WEIGHTS, "spark-a"),
    ("vllm-fail-unsupported-arch.log", "model_unsupported", CONFIG, "spark-a"),
    ("vllm-fail-model-path-missing.log", "weights_missing_or_corrupt", CONFIG, "spark-a"),
    ("vllm-fail-bad-arg-unknown.log", "bad_cli_argument", CONFIG, "spark-a"),
    ("vllm-fail-bad-arg-value.log", "bad_cli_argument", CONFIG, "spark-a"),
    ("vllm-fail-ray-on-plain-cpu-platform.log", "bad_cli_argument", CONFIG, "spark-a"),
    ("vllm-fail-port-in-use.log", "port_in_use", None, "spark-a"),
    ("vllm-first-try-with-broken-torchvision.log", "broken_install", CONFIG, "spark-a"),
    ("vllm-sigterm-with-inflight-request.log", "clean_shutdown", Phase.SERVING, "spark-a"),
    ("vllm-sigterm-shutdown-timeout-20.log", "clean_shutdown", Phase.SERVING, "spark-a"),
    ("vllm-ready-timeout-5s.log", "clean_shutdown", Phase.SERVING, "spark-a"),
]
HEALTHY = [
    "vllm-healthy-mp-tp1.log",
    "vllm-healthy-22-shards-eager.log",
    "vllm-healthy-mp-tp1-warm-compile-cache.log",
    "vllm-ray-tp1.log",
    "vllm-ray-tp2-two-nodes.log",
    "vllm-mp-nnodes2-rank0.log",
    "vllm-mp-nnodes2-rank1-headless.log",
    "ray-start-head-ok.log",
    "ray-start-worker-ok.log",
    "s01_healthy_v2.serve.log",
    "s01b_healthy_real_safetensors.serve.log",
]


def check(found: Diagnosis, cause: str, phase: Phase | None, node: str | None) -> None:
    assert found.cause == cause, found
    assert phase is None or found.phase is phase, found
    assert node is None or found.node == node, found
    assert found.confidence >= 0.5
    assert found.evidence
    assert found.explanation


@pytest.mark.parametrize(("file", "cause", "phase", "node"), SINGLE, ids=[row[0] for row in SINGLE])
def test_one_log(file: str, cause: str, phase: Phase | None, node: str | None) -> None:
    check(replay.diagnose([Log(file)]), cause, phase, node)


@pytest.mark.parametrize("file", HEALTHY)
def test_a_healthy_start_shows_no_cause(file: str) -> None:
    """Some of these runs were ended with SIGTERM by who made them: that alone may be said."""
    heard = replay.hear([Log(file)])
    stopped = next((s.at_s for s in heard.signals if s.cause == "clean_shutdown"), float("inf"))
    assert not [s for s in heard.signals if s.at_s < stopped]


def test_rays_kill_is_found_in_the_other_file() -> None:
    found = replay.diagnose(
        [
            Log("vllm-fail-ray-oom-kill.log"),
            raylet("ray-oom-raylet-out-vllm-worker-nodeA.log"),
            raylet("ray-oom-raylet-out-vllm-worker-nodeB.log", "spark-b"),
        ]
    )
    check(found, "ray_oom_kill", Phase.SERVING, "spark-a")
    assert found.rank == 0
    assert found.transient is False
    assert found.quantity("total_bytes") == 25276063744
    assert found.quantity("threshold_bytes") == 10110426112
    assert "(40.44 %), over its threshold of 40.00 %" in found.explanation
    assert any("died unexpectedly" in quote.text for quote in found.cascade)


def test_a_threshold_that_was_passed_is_no_memory_that_was_exhausted() -> None:
    found = replay.diagnose([ray("ray-oom-raylet-external-hog-no-victim.log")])
    assert "the node's memory was over Ray's threshold of 40.00 % (9.47 of 23.54 GiB" in found.explanation


@pytest.mark.parametrize("others", [[], ["s06_ray_oom_kill_v2.gcs_server.out"]])
def test_rays_kill_of_two_workers_of_one_host(others: list[str]) -> None:
    logs = [Log("s06_ray_oom_kill_v2.serve.log"), raylet("s06_ray_oom_kill_v2.raylet.out")]
    found = replay.diagnose([*logs, *(raylet(name) for name in others)], places=ONE_HOST)
    check(found, "ray_oom_kill", Phase.SERVING, "spark-a")
    assert found.quantity("workers_count") == 2


def test_the_gpu_runs() -> None:
    found = replay.diagnose([Log("s03b_oom_kv_alloc.serve.log")], places=ONE_HOST)
    check(found, "cuda_oom", Phase.ALLOCATING_KV_CACHE, "spark-a")
    assert found.rank == 1
    assert found.quantity("requested_bytes") == 2.5 * (1 << 30)
    found = replay.diagnose([Log("s04_free_mem_less.serve.log")], places=ONE_HOST)
    check(found, "startup_free_memory_too_low", Phase.INIT_DISTRIBUTED, "spark-a")
    found = replay.diagnose([Log("s07_kill_worker_v2.serve.log")], places=ONE_HOST)
    check(found, "worker_process_died", Phase.SERVING, "spark-a")
    stopped = [Log("s08_sigstop_worker_v2.serve.log")]
    assert replay.diagnose(stopped, places=ONE_HOST).cause == "none"  # one wait is a long step
    seen = Signal(
        "observed_no_progress",
        "engine_hang",
        Proof.PROVES,
        "",
        "sparkd",
        "no token",
        1796005000.0,
        fatal=True,
    )
    check(replay.diagnose(stopped, seen, places=ONE_HOST), "engine_hang", Phase.SERVING, None)


@pytest.mark.parametrize("idle", ["", "idle-"])
def test_a_remote_workers_death_is_not_the_survivors_error(idle: str) -> None:
    name = f"vllm-fail-mp-nnodes2-{idle}remote-worker-sigkill-rank"
    found = replay.diagnose([Log(f"{name}0.log"), Log(f"{name}1.log", "spark-b")])
    check(found, "worker_process_died", Phase.SERVING, "spark-b")
    assert found.rank == 1


@pytest.mark.parametrize("name", ["idle-remote-worker-sigkill", "remote-worker-sigkill", "powerloss"])
def test_a_rank_without_a_server_does_not_say_that_it_serves(name: str) -> None:
    file = f"vllm-fail-mp-nnodes2-{name}-rank1.log"
    found = Diagnoser(packaged_catalogue()).lines(replay.text_of(file).split("\n")).diagnosis
    assert found.cause in {"worker_process_died", "killed_unspecified"}
    assert found.phase is None
    assert "while" not in found.explanation


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("vllm-fail-port-in-use.log", "a port is taken (port 18000) "),
        (
            "vllm-fail-bad-arg-value.log",
            "greater than the derived max_model_len (max_position_embeddings=2048.0",
        ),
        ("vllm-sigterm-with-inflight-request.log", "somebody or something asked the engine to stop"),
    ],
)
def test_the_explanation_names_what_a_person_needs(file: str, says: str) -> None:
    found = Diagnoser(packaged_catalogue()).lines(replay.text_of(file).split("\n")).diagnosis
    assert says in found.explanation


def test_a_port_that_the_words_name_is_not_named_again() -> None:
    begun = "INFO 11-30 01:30:29 [a.py:2] non-default args: {'model_tag': 'm', 'port': 18000}"
    for taken, port in (
        ("OSError: [Errno 98] Address already in use", 18000.0),
        ("Port 8000 is already in use", None),
    ):
        found = Diagnoser(packaged_catalogue()).lines([begun, taken]).diagnosis
        assert (found.cause, found.quantity("port_number")) == ("port_in_use", port)


def test_a_rank_that_fails_right_after_what_it_told_failed_of_it() -> None:
    lines = replay.text_of("vllm-fail-mp-nnodes2-remote-worker-sigkill-rank1.log").split("\n")
    until = next(number for number, line in enumerate(lines) if "for KV cache on node 0" in line)
    died = next(line for line in lines if "died unexpectedly" in line).replace("02:07:15", "02:06:53")
    died = "[   68.00" + died[died.index("]") :]
    found = Diagnoser(packaged_catalogue()).lines([*lines[: until + 1], died]).diagnosis
    assert (found.cause, found.phase) == ("worker_process_died", Phase.ALLOCATING_KV_CACHE)


def test_a_silent_peer_is_lost_where_it_was_observed() -> None:
    log = Log("vllm-fail-mp-nnodes2-powerloss-rank0.log")
    check(replay.diagnose([log]), "engine_hang", Phase.SERVING, None)
    lost = Signal(
        "observed_peer_lost",
        "peer_lost",
        Proof.PROVES,
        "spark-b",
        "sparkd",
        "no path to spark-b answers",
        at_s=replay.hear([log]).signals[0].at_s - 40.0,
        fatal=True,
    )
    check(replay.diagnose([log], lost), "peer_lost", Phase.SERVING, "spark-b")


@pytest.mark.parametrize(
    ("file", "cause"),
    [
        ("ray-auth-worker-no-token.log", "ray_auth_refused"),
        ("ray-auth-worker-wrong-token.log", "ray_auth_refused"),
        ("ray-version-mismatch-251-client-260-cluster.log", "ray_version_mismatch"),
        ("ray-raylet-log-marked-dead-after-netloss.log", "ray_node_died"),
        ("ray-oom-raylet-out-kill-block-actor.log", "ray_oom_kill"),
        ("ray-oom-raylet-out-summary-line.log", "ray_oom_kill"),
        ("ray-oom-driver-actor.log", "ray_oom_kill"),
        ("ray-oom-driver-task-retries.log", "ray_oom_kill"),
        ("ray-oom-raylet-external-hog-no-victim.log", "host_memory_pressure"),
    ],
)
def test_rays_own_logs(file: str, cause: str) -> None:
    assert replay.diagnose([ray(file)]).cause == cause
