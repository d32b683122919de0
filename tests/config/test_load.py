"""What a right configuration becomes."""

import socket

import pytest

from config.files import KEY, RIGHT
from sparkd.config.load import load
from sparkd.core.policy import Policy
from sparkd.engines.member import digests
from sparkd.engines.model import Device
from sparkd.words import GIB, Backend, CudaGraph, Floors, Phase, Role, Settings


def test_least_configuration_is_all_defaults(place):
    loaded = place.load()
    plain = Policy(node="", head="", nodes=())
    assert loaded.policy.settings == Settings(ray_memory_threshold=0.98)
    assert loaded.policy.ray_monitor_off_asked, "where every guard enforces"
    assert loaded.policy.floors == Floors()
    assert loaded.policy.phase_budget_s == plain.phase_budget_s
    assert loaded.policy.stall_s == plain.stall_s
    assert loaded.policy.nodes == (("spark-a", "192.168.200.12"), ("spark-b", "192.168.200.13"))
    assert (loaded.policy.node, loaded.policy.head, loaded.policy.gpus) == ("spark-a", "spark-a", 1)
    assert loaded.engine.served_name == "Qwen3"
    assert loaded.key == KEY.encode()
    assert loaded.broker.embedded
    assert (loaded.broker.host, loaded.broker.port) == ("192.168.200.12", 1883)
    assert loaded.api.peer_addresses == ("192.168.200.12",)
    assert loaded.api.socket == "/run/sparkd/sparkd.sock"
    assert loaded.notes == ()


def test_digests_are_those_of_the_engine(place):
    loaded = place.load()
    expected = digests(loaded.engine, "sparks", loaded.node, loaded.nodes)
    assert (loaded.policy.shared_digest, loaded.policy.node_digest) == expected


def test_both_nodes_agree(place):
    assert place.load("spark-a").policy.shared_digest == place.load("spark-b").policy.shared_digest


def test_head_is_rank_0_wherever_it_stands(place):
    loaded = place.load(node=list(reversed(RIGHT["node"])))
    assert [(node.name, node.role, node.rank) for node in loaded.nodes] == [
        ("spark-a", Role.HEAD, 0),
        ("spark-b", Role.WORKER, 1),
    ]


def test_every_kind_of_value(place):
    loaded = place.load(
        engine__backend="mp",
        engine__device="cpu",
        engine__env={"NCCL_DEBUG": "INFO", "A": 3},
        engine__vllm={"extra_args": ["--trust-remote-code"], "execute_timeout_s": 200},
        settings={"kv_cache_bytes": "44.5GiB", "cudagraph": "none"},
        floors={"eager_allowed": False},
        timeouts={"stall_s": 90, "phase_budget_s": {"compiling": 3000}},
        recovery={"transient_budget": 5},
        paths={"run_dir": "/srv/r/"},
    )
    assert (loaded.engine.backend, loaded.engine.device) == (Backend.MP, Device.CPU)
    assert loaded.engine.env == (("A", "3"), ("NCCL_DEBUG", "INFO"))
    assert loaded.engine.extra_args == ("--trust-remote-code",)
    assert loaded.policy.settings == Settings(
        ray_memory_threshold=0.98, kv_cache_bytes=89 * GIB // 2, cudagraph=CudaGraph.NONE
    )
    assert not loaded.policy.floors.eager_allowed
    assert loaded.policy.stall_s == 90.0
    assert loaded.policy.budget_of(Phase.COMPILING) == 3000.0
    assert loaded.policy.budget_of(Phase.PROFILING) == 1200.0
    assert loaded.policy.transient_budget == 5
    assert loaded.api.socket == "/srv/r/sparkd.sock"


@pytest.mark.parametrize(
    ("given", "threshold", "off"),
    [
        ({"settings__ray_memory_threshold": 0.9}, 0.9, False),
        ({"recovery__unified_memory": False}, 0.95, False),
        ({"recovery__unified_memory": False, "settings__ray_memory_threshold": "off"}, 0.98, True),
    ],
)
def test_ray_monitor_is_the_operators_and_by_default_off_on_unified_memory_alone(
    place, given, threshold, off
):
    policy = place.load(**given).policy
    assert (policy.settings.ray_memory_threshold, policy.ray_monitor_off_asked) == (threshold, off)


def test_ray_monitor_off_waits_for_the_guard(place):
    loaded = place.load(settings__ray_memory_threshold="off")
    assert loaded.policy.settings.ray_memory_threshold == 0.98
    assert loaded.policy.ray_monitor_off_asked
    assert "until then Ray's monitor stays on" in loaded.notes[0]


def test_broker_of_others(place):
    loaded = place.load(broker={"host": "broker.lan", "port": 8883, "tls": True, "username": "u"})
    assert not loaded.broker.embedded
    assert (loaded.broker.host, loaded.broker.port, loaded.broker.tls) == ("broker.lan", 8883, True)


def test_password_in_clear_is_said(place):
    assert "in clear" in place.load(broker={"host": "b", "password": "p"}).notes[0]


def test_second_address(place):
    loaded = place.load(node__0__management_address="10.0.0.12")
    assert loaded.api.peer_addresses == ("192.168.200.12", "10.0.0.12")


@pytest.mark.parametrize(
    ("host", "found"), [("spark-b", "spark-b"), ("spark-b.lan", "spark-b"), ("spark-a", "spark-a")]
)
def test_node_by_hostname(place, monkeypatch, host, found):
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    assert place.load(None).node.name == found


def test_node_by_environment_and_by_argument(place):
    assert place.load(None, {"SPARKD_NODE": "spark-b"}).node.name == "spark-b"
    assert place.load("spark-a", {"SPARKD_NODE": "spark-b"}).node.name == "spark-a"


def test_environment_wins_over_the_file(place):
    environ = {
        "SPARKD_ENGINE__RAY__PORT": "6400",
        "SPARKD_ENGINE__ENV": '{"B": "2"}',
        "SPARKD_ENGINE__VLLM__EXTRA_ARGS": '["--x"]',
        "SPARKD_SETTINGS__KV_CACHE_BYTES": "2GiB",
        "SPARKD_SETTINGS__RAY_MEMORY_THRESHOLD": "off",
        "SPARKD_TIMEOUTS__PHASE_BUDGET_S__COMPILING": "99",
        "SPARKD_ENGINE__AUTOSTART": "false",
        "SPARKD_BROKER__HOST": "b",
    }
    loaded = place.load(environ=environ, engine__ray__port=6390, engine__env={"A": "1"})
    assert loaded.engine.ray_port == 6400
    assert loaded.engine.env == (("A", "1"), ("B", "2"))
    assert loaded.engine.extra_args == ("--x",)
    assert loaded.policy.settings.kv_cache_bytes == 2 * GIB
    assert loaded.policy.ray_monitor_off_asked
    assert loaded.policy.budget_of(Phase.COMPILING) == 99.0
    assert not loaded.policy.autostart
    assert loaded.broker.host == "b"


def test_reserved_and_foreign_variables_are_no_keys(place):
    environ = {
        "SPARKD_STAMP": "a/b/1/ray",
        "SPARKD_CPU_RAY": "1",
        "SPARKD_STANDIN_SPEED": "2",
        "SPARKD_ENGINE_ENV": "/e",
        "SPARKD_CONFIG": "/c",
        "PATH": "/bin",
        "ENGINE__MODEL": "x",
    }
    assert place.load(environ=environ) == place.load()


def test_the_processes_own_environment_only_where_none_is_given(place, monkeypatch):
    monkeypatch.setenv("SPARKD_BROKER__PORT", "1900")
    assert place.load().broker.port == 1883
    assert load(place.path, "spark-a").broker.port == 1900


def test_credentials(place, tmp_path):
    (tmp_path / "cluster_key").write_bytes(b"k" * 32 + b"\n")
    (tmp_path / "broker_password").write_text("pw\n")
    (tmp_path / "ray_token").write_text("tok\n")
    loaded = place.load(credentials_dir=str(tmp_path), cluster__key=...)
    assert loaded.key == b"k" * 32
    assert loaded.broker.password == "pw"
    assert loaded.engine.ray_auth_token_path == str(tmp_path / "ray_token")
    assert place.load(environ={"CREDENTIALS_DIRECTORY": str(tmp_path)}, cluster__key=...) == loaded


def test_api_key(place):
    assert place.load().api_key is None
    assert place.load(engine__env={"VLLM_API_KEY": "k"}).api_key == "k"


def test_no_secret_in_a_repr(place):
    loaded = place.load(
        broker={"host": "b", "tls": True, "password": "pw-secret"}, engine__env={"HF_TOKEN": "hf-secret"}
    )
    assert loaded.broker.password == "pw-secret"
    assert not [secret for secret in (KEY, "pw-secret", "hf-secret") if secret in repr(loaded)]


def test_a_grace_that_systemd_would_cut_short_is_told(place) -> None:
    """Units of systemd have a time limit of their own; children have none."""
    assert place.load(timeouts__stop_grace_s=26.0).notes == ()
    note = place.load(timeouts__stop_grace_s=27.0).notes[0]
    assert "92 s" in note
    assert "TimeoutStopSec=90" in note
    assert place.load(timeouts__stop_grace_s=27.0, units__backend="children").notes == ()
