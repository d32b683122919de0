"""What a wrong configuration gets: every error, with key, value and what is allowed."""

import pathlib

import pytest

from config.files import KEY, RIGHT
from sparkd.config import ConfigError
from sparkd.config.load import load

NODE = RIGHT["node"][1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"engine__vllm__api_port": 99999},
            "engine.vllm.api_port = 99999: must be less than or equal to 65535",
        ),
        ({"engine__backend": "mpi"}, "engine.backend = 'mpi': must be 'ray' or 'mp'"),
        ({"engine__model": ...}, "engine.model: is missing and has no default"),
        ({"engine__model": "Qwen/Qwen3"}, "engine.model = 'Qwen/Qwen3': must be an absolute path"),
        (
            {"engine__ray__program": "bin/ray"},
            "engine.ray.program = 'bin/ray': must be an absolute path, or a name",
        ),
        ({"node__1__address": "spark-b.lan"}, "node[1].address = 'spark-b.lan': must be an IPv4 address"),
        (
            {"node__0__interface": "en p"},
            "node[0].interface = 'en p': must be the name of a network interface",
        ),
        ({"cluster__name": "a/b"}, "cluster.name = 'a/b': must match"),
        (
            {"settings__gpu_memory_utilization": 1.5},
            "settings.gpu_memory_utilization = 1.5: must be less than 1",
        ),
        (
            {"settings__kv_cache_bytes": "44GB"},
            "settings.kv_cache_bytes = '44GB': must be a number of bytes, or",
        ),
        (
            {"settings__ray_memory_threshold": 0.99},
            "settings.ray_memory_threshold = 0.99: must be less than or equal",
        ),
        ({"settings__ray_memory_threshold": "of"}, "or must be 'off'"),
        ({"timeouts__stall_s": 0}, "timeouts.stall_s = 0: must be greater than 0"),
        ({"engine": 3}, "engine = 3: must be a valid dictionary"),
        ({"node": {}}, "node = (table): must be a valid list"),
    ],
)
def test_values(place, changes, said):
    lines = place.refused(**changes)
    assert len(lines) == 1
    assert said in lines[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"engin": {}}, "engin: unknown key; did you mean engine?"),
        ({"_env_file": "x"}, "_env_file: unknown key"),
        ({"engine__tensor_paralel": 2}, "engine.tensor_paralel: unknown key; did you mean tensor_parallel?"),
        ({"engine__ray__version": 2.6}, "engine.ray.version = 2.6: must be a valid string: put it in quotes"),
        ({"cluster__name": 7}, "cluster.name = 7: must be a valid string: put it in quotes"),
        ({"engine__ray__prot": 1}, "engine.ray.prot: unknown key; did you mean port?"),
        ({"node__1__adress": "x"}, "node[1].adress: unknown key; did you mean address?"),
        ({"settings__swap": 1}, "settings.swap: unknown key (known here: ray_memory_threshold,"),
        ({"timeouts__phase_budget_s": {"compilling": 1}}, "compilling: unknown key; did you mean compiling?"),
    ],
)
def test_unknown_keys(place, changes, said):
    lines = place.refused(**changes)
    assert len(lines) == 1
    assert said in lines[0]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("SPARKD_ENGIN__MODEL", "x", "sets no key; did you mean SPARKD_ENGINE__MODEL?"),
        ("SPARKD_BROKER_PORT", "1", "sets no key; did you mean SPARKD_BROKER__PORT?"),
        ("SPARKD_BROKER__PORT__X", "1", "sets no key; did you mean SPARKD_BROKER__PORT?"),
        ("SPARKD_NODES", "1", "sets no key; did you mean SPARKD_NODE?"),
        ("SPARKD_ENGINE__ENV", "A=1", 'must be JSON, such as {"NAME": "value"}'),
        ("SPARKD_ENGINE__RAY__EXTRA_ARGS", "--x", 'must be JSON, such as ["--option=value"]'),
        ("SPARKD_BROKER__PORT", "x", "broker.port = 'x': must be a valid integer"),
    ],
)
def test_variables(place, name, value, said):
    lines = place.refused(environ={name: value})
    assert len(lines) == 1
    assert lines[0].startswith(f"environment {name}: ")
    assert said in lines[0]


def test_all_errors_at_once(place):
    lines = place.refused(
        environ={"SPARKD_X": "1"},
        engine__vllm__api_port=0,
        node__0__role="chief",
        floors={"max_num_seqs": -1},
    )
    assert [line.split(" = ")[0].split(":")[0] for line in lines] == [
        "environment SPARKD_X",
        "node[0].role",
        "engine.vllm.api_port",
        "floors.max_num_seqs",
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"node__0__role": "worker"}, 'node: 0 nodes have role = "head"; exactly one must have it'),
        ({"node__1__role": "head"}, 'node: 2 nodes have role = "head" (spark-a, spark-b); exactly one'),
        ({"node__1__name": "spark-a"}, "node: the name spark-a is used more than once"),
        ({"node__1__address": "192.168.200.12"}, "node: the address 192.168.200.12 is used more than once"),
        (
            {"node__1__management_address": "192.168.200.12"},
            "the address 192.168.200.12 is used more than once",
        ),
        ({"node__1__address": "127.0.0.2"}, "node: spark-b has a loopback address and other nodes have not"),
        ({"engine__tensor_parallel": 4}, "4 x engine.pipeline_parallel 1 = 4 ranks, but 2 nodes x"),
        ({"engine__ray__temp_dir": "/" + "t" * 43}, "44 bytes; at most 43 leave room for Ray's socket names"),
        ({"engine__device": "cpu"}, "engine.ray.num_gpus: must be given"),
        ({"engine__vllm__api_port": 9760}, "engine.vllm.api_port and api.port: both are 9760"),
        ({"broker": {"port": 6379}}, "engine.ray.port and broker.port: both are 6379"),
        ({"paths__run_dir": "/" + "r" * 100}, "api.socket = '/rrr"),
        ({"engine__env": {"SPARKD_STAMP": "x"}}, "engine.env.SPARKD_STAMP: is decided by nothing"),
        (
            {"engine__env": {"VLLM_HOST_IP": "x"}},
            "engine.env.VLLM_HOST_IP: is decided by address of the [[node]]",
        ),
        ({"engine__env": {"NCCL_SOCKET_IFNAME": "x"}}, "is decided by interface of the [[node]]"),
        ({"engine__env": {"VLLM_CPU_KVCACHE_SPACE": "1"}}, "is decided by settings.kv_cache_bytes"),
        ({"node__0__env": {"RAY_ADDRESS": "x"}}, "node[0].env.RAY_ADDRESS: is decided by"),
        ({"engine__vllm__extra_args": ["--port=1"]}, "'--port=1' is decided by engine.vllm.api_port"),
        ({"engine__vllm__extra_args": ["--max_num_seqs", "4"]}, "is decided by settings.max_num_seqs"),
        (
            {"engine__vllm__extra_args": ["--api-key", "k"]},
            "'--api-key' is decided by VLLM_API_KEY in engine.env",
        ),
        ({"engine__ray__extra_args": ["4"]}, "engine.ray.extra_args: begins with '4'"),
        ({"settings__max_num_seqs": 4}, "settings.max_num_seqs = 4: below floors.max_num_seqs = 8"),
        ({"settings__gpu_memory_utilization": 0.3}, "= 0.3: below floors.gpu_memory_utilization = 0.5"),
        (
            {"settings": {"max_num_batched_tokens": 512, "max_num_seqs": 1024}},
            "512: below settings.max_num_seqs",
        ),
        ({"broker__tls": True}, "broker.tls: the embedded broker speaks no TLS"),
        ({"broker": {"host": "b", "tls": True, "cert_file": "/c"}}, "must be given together"),
        ({"broker": {"host": "b", "ca_file": "/c"}}, "have no effect without broker.tls"),
        ({"timeouts__verify_deadline_s": 120}, "= 120 s: must be below timeouts.no_progress_s = 120 s"),
        ({"timeouts__no_progress_s": 300}, "must be below engine.vllm.execute_timeout_s = 300 s"),
        ({"engine__ray__health_failures": 40}, "= 120 s: must be below timeouts.no_progress_s = 120 s: Ray"),
        ({"timeouts__membership_every_s": 30}, "= 30 s: must be below timeouts.membership_silence_s"),
        ({"timeouts__status_every_s": 10}, "= 10 s: must be below timeouts.peer_silence_s = 10 s"),
        ({"timeouts__stall_s": 600}, "= 600 s: must be below timeouts.phase_budget_s.loading_weights"),
        ({"recovery__backoff_base_s": 300}, "= 300 s: must be below recovery.backoff_max_s = 300 s"),
    ],
)
def test_relations(place, changes, said):
    lines = place.refused(**changes)
    assert len(lines) == 1, lines
    assert said in lines[0]


@pytest.mark.parametrize("count", [1, 9])
def test_number_of_nodes(place, count):
    nodes = [RIGHT["node"][0]] + [
        NODE | {"name": f"w{index}", "address": f"192.168.201.{index}"} for index in range(1, count)
    ]
    lines = place.refused(node=nodes, engine__tensor_parallel=count)
    assert lines == [f"node: {count} nodes; 2 to 8 are allowed"]


def test_this_node_is_none_of_them(place):
    assert place.refused("spark-c") == [
        "node: --node spark-c is none of the configured nodes (spark-a, spark-b)"
    ]


def test_key(place, tmp_path):
    assert "cluster.key: is missing" in place.refused(cluster__key=...)[0]
    assert place.refused(cluster__key="short") == ["cluster.key: has 5 bytes; at least 16 are needed"]
    (tmp_path / "cluster_key").write_text("another-key-0123456789")
    assert "differs from the credential" in place.refused(credentials_dir=str(tmp_path))[0]
    (tmp_path / "cluster_key").write_text("\n")
    assert any("is empty" in line for line in place.refused(credentials_dir=str(tmp_path)))


def test_password_twice(place, tmp_path):
    (tmp_path / "broker_password").write_text("one")
    assert (
        "broker.password: differs" in place.refused(credentials_dir=str(tmp_path), broker__password="two")[0]
    )


def test_unreadable_credential(place, tmp_path):
    (tmp_path / "cluster_key").mkdir()
    assert "cannot be read" in place.refused(credentials_dir=str(tmp_path))[0]


def test_no_secret_in_an_error(place):
    refusals = [
        *place.refused(cluster=[{"name": "a", "key": KEY}]),
        *place.refused(cluster__key=[KEY]),
        *place.refused(broker__password={"a": KEY}),
        *place.refused(engine__env={"HF_TOKEN": [KEY]}),
        *place.refused(environ={"SPARKD_CLUSTER__KEY": "s3cret"}),
    ]
    assert len(refusals) == 5
    assert not [line for line in refusals if KEY in line or "s3cret" in line]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a = ", "is no TOML: "),
        (b"\xff", "is no UTF-8 text: "),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_unreadable_files(place, content, said):
    if content is not None:
        pathlib.Path(place.path).write_bytes(content)
    with pytest.raises(ConfigError) as refusal:
        load(place.path, "spark-a", {})
    assert refusal.value.lines[0].startswith(f"{place.path}: {said}")


def test_a_boolean_is_no_number(place):
    lines = place.refused(engine__tensor_parallel=True)
    assert lines == ["engine.tensor_parallel = True: must not be true or false"]
    assert len(place.refused(timeouts__stall_s=False)) == 1


def test_a_page_for_others_needs_a_token(place, tmp_path) -> None:
    """Refused where it is read, not only where it would listen."""
    assert "give api.token" in place.refused(api__address="0.0.0.0")[0]

    (tmp_path / "api_token").write_text("a token for the page\n")
    loaded = place.load(credentials_dir=str(tmp_path), api__address="0.0.0.0")
    assert loaded.api.token == "a token for the page"
    assert "a token" not in repr(loaded)


def test_a_directory_of_credentials_that_is_not_there_is_told(place, tmp_path) -> None:
    assert "is no directory of credentials" in place.refused(credentials_dir=str(tmp_path / "nope"))[0]
