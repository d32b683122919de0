"""The ray unit: what Ray's own command line takes, and what each node's environment says."""

import json
import pathlib

import pytest

from engines.specs import ASKED, HEAD, SPEC, STAMP, WORKER, env, settings, spec
from sparkd.engines.environment import PINNED
from sparkd.engines.ray import SOCKET_PATH_MAX, SOCKET_TAIL, TEMP_DIR_MAX, render_ray
from sparkd.words import NO_STAMP, UnitName

OPTIONS = pathlib.Path(__file__).parents[1] / "standin/data/ray_start_options.json"


def ray(node=HEAD, engine=SPEC, asked=ASKED, stamp=STAMP):
    return render_ray(engine, "sparks", node, HEAD, settings=asked, stamp=stamp)


def test_head():
    assert ray().argv == (
        "ray",
        "start",
        "--head",
        "--port=6379",
        "--include-dashboard=false",
        "--node-ip-address=192.168.200.12",
        "--object-store-memory=1073741824",
        "--temp-dir=/var/tmp/sparkd-ray",
        "--disable-usage-stats",
        "--log-color=false",
        "--block",
    )


def test_worker_has_no_option_of_the_head():
    """Ray aborts on --port and --include-dashboard where --head is not given."""
    argv = ray(WORKER).argv
    assert "--address=192.168.200.12:6379" in argv
    assert "--node-ip-address=192.168.200.13" in argv
    assert not [arg for arg in argv if arg.startswith(("--head", "--port", "--include-dashboard"))]


@pytest.mark.parametrize("node", [HEAD, WORKER])
def test_every_option_exists_in_ray(node):
    """Names recorded from the real `ray start` of 2.60."""
    known = {name for option in json.loads(OPTIONS.read_text()) for name in option["names"]}
    argv = ray(node, spec(ray_num_gpus=1)).argv
    assert {arg.partition("=")[0] for arg in argv[2:]} <= known


def test_gpus_and_extra_arguments():
    argv = ray(engine=spec(ray_num_gpus=1, ray_extra_args=("--num-cpus=4",))).argv
    assert "--num-gpus=1" in argv
    assert argv[-1] == "--num-cpus=4"


def test_environment_of_each_node():
    head, worker = env(ray()), env(ray(WORKER))
    assert head["VLLM_HOST_IP"] == "192.168.200.12"
    assert worker["VLLM_HOST_IP"] == "192.168.200.13"
    assert worker["NCCL_SOCKET_IFNAME"] == worker["GLOO_SOCKET_IFNAME"] == "enP2p1s0f1np1"
    assert worker["NCCL_IB_HCA"] == "roceP2p1s0f1"
    assert head["SPARKD_STAMP"] == "sparks/spark-a/14/ray"
    assert worker["SPARKD_STAMP"] == "sparks/spark-b/14/ray"
    assert head["PATH"] == SPEC.path
    assert head["HOME"] == SPEC.home
    assert head["SPT_NOENV"] == "1"
    assert "RAY_ADDRESS" not in head


def test_health_check_is_the_heads():
    assert env(ray())["RAY_health_check_failure_threshold"] == "3"
    assert env(ray())["RAY_health_check_initial_delay_ms"] == "1000"
    assert not [name for name in env(ray(WORKER)) if name.startswith("RAY_health_check")]


def test_memory_monitor():
    assert env(ray(WORKER))["RAY_memory_usage_threshold"] == "0.95"
    off = env(ray(WORKER, asked=settings(ray_memory_threshold=None)))
    assert off["RAY_memory_monitor_refresh_ms"] == "0"
    assert "RAY_memory_usage_threshold" not in off


def test_authentication_is_always_said():
    assert env(ray())["RAY_AUTH_MODE"] == "disabled"
    token = env(ray(engine=spec(ray_auth_token_path="/etc/sparkd/token")))
    assert (token["RAY_AUTH_MODE"], token["RAY_AUTH_TOKEN_PATH"]) == ("token", "/etc/sparkd/token")


def test_operator_cannot_change_what_is_pinned():
    """The configuration refuses these; nothing gets past it even so."""
    clean = env(ray())
    dirty = env(ray(engine=spec(env=tuple((name, "x") for name in PINNED))))
    assert {name: dirty[name] for name in clean} == clean
    assert {name for name in dirty if dirty[name] == "x"} <= set(PINNED) - set(clean)


def test_operator_may_change_what_is_proposed():
    assert env(ray(engine=spec(env=(("RAY_DEDUP_LOGS", "1"),))))["RAY_DEDUP_LOGS"] == "1"


def test_versions():
    assert ray().warnings == ()
    assert "unknown version" in ray(engine=spec(ray_version="")).warnings[0]
    assert "2.70.1" in ray(engine=spec(ray_version="2.70.1")).warnings[0]
    old = ray(WORKER, spec(ray_version="2.51.2", ray_auth_token_path="/t"))
    assert len(old.warnings) == 2


def test_longest_temp_dir():
    assert TEMP_DIR_MAX == 43
    assert len("/" + "t" * (TEMP_DIR_MAX - 1) + SOCKET_TAIL) == SOCKET_PATH_MAX


def test_identity():
    rendered = ray(stamp=NO_STAMP)
    assert (rendered.unit, rendered.stamp) == (UnitName.RAY, NO_STAMP)
    assert list(rendered.env) == sorted(rendered.env)


def test_no_environment_in_a_repr():
    secret = spec(env=(("HF_TOKEN", "hf_secret"),))
    assert "hf_secret" not in repr(secret) + repr(ray(engine=secret))
