"""What `sparkctl init` and `join` would do: addresses found out, a configuration that loads, a token."""

from __future__ import annotations

import ipaddress
import tomllib
from dataclasses import replace

import pytest

from cli.setup_bed import KEY, host, package, runs, shipped, writes
from config.files import EXAMPLE
from sparkd.config.load import load
from sparkd.setup import broker, join, network, probe, token
from sparkd.setup.head import Fresh, InitError, Programs, Wishes, plan_init
from sparkd.setup.network import Link, Network, NetworkError
from sparkd.setup.places import BROKER_ACCOUNTS, CLUSTER_KEY, CONFIG, MANIFEST
from sparkd.setup.render import render, toml
from sparkd.setup.steps import Run, plan_lines

FABRIC = ipaddress.IPv4Network("192.168.200.0/24")
LAN = ipaddress.IPv4Network("10.0.0.0/24")
OWN = Link("enp1s0f0np0", "192.168.200.12", FABRIC, rdma=True)
TWIN = Link("enP2p1s0f0np0", "192.168.201.12", ipaddress.IPv4Network("192.168.201.0/24"), rdma=True)
OFFICE = Link("enP7s7", "10.0.0.12", LAN, gateway=True)
PAIR = Network((OWN, OFFICE))
WORKERS = Network((replace(OWN, address="192.168.200.13", interface="enP2p1s0f1np1"),))
ENGINE = Programs("/opt/vllm/bin", True, "0.32.0", "2.60.0", has_mosquitto=True)
WISHES = Wishes(workers=("spark-b",), model="/srv/models/Qwen3")
FRESH = Fresh(KEY, ("word-a", "word-b", "word-w"))
BARE = host(files={}, node=None)


def init(wishes=WISHES, net=PAIR, programs=ENGINE, where=BARE, **more):
    return plan_init(shipped(), where, net, programs=programs, wishes=wishes, fresh=FRESH, **more)


def document(head):
    return tomllib.loads(head.text)


def loaded(text, node, folder, **secrets):
    (folder / "sparkd.toml").write_text(text)
    for name, secret in {"cluster_key": KEY, **secrets}.items():
        (folder / name).write_text(secret)
    return load(str(folder / "sparkd.toml"), node, {}, str(folder))


def test_what_can_be_found_out_is_not_asked() -> None:
    head = init()

    assert document(head)["node"] == [
        {
            "name": "spark-a",
            "role": "head",
            "address": "192.168.200.12",
            "interface": "enp1s0f0np0",
            "management_address": "10.0.0.12",
        },
        {"name": "spark-b", "role": "worker", "address": "192.168.200.13", "interface": "enp1s0f0np0"},
    ]
    assert document(head)["engine"] == {
        "model": "/srv/models/Qwen3",
        "backend": "ray",
        "tensor_parallel": 2,
        "path": "/opt/vllm/bin:/usr/local/bin:/usr/bin:/bin",
        "home": "/var/lib/sparkd-engine",
        "ray": {"version": "2.60.0"},
        "vllm": {"version": "0.32.0"},
    }
    assert "192.168.200.13 for spark-b is only assumed" in head.plan.warnings[0]


def test_every_node_loads_it_with_the_daemons_own_loader(tmp_path) -> None:
    head = init()
    nodes = [loaded(head.text, name, tmp_path) for name in ("spark-a", "spark-b")]

    assert [node.node.role.value for node in nodes] == ["head", "worker"]
    assert nodes[0].policy.shared_digest == nodes[1].policy.shared_digest
    assert nodes[0].notes == ()
    assert probe.tried(head.text, "spark-a", {"cluster_key": KEY}).model == "/srv/models/Qwen3"


def test_it_keeps_every_explanation_of_the_example() -> None:
    comments = [line for line in EXAMPLE.read_text().splitlines() if line.startswith("# ")]
    written = set(init().text.splitlines())

    assert [line for line in comments if line not in written] == []


def test_without_ray_beside_vllm_its_own_multi_node_mode_is_used() -> None:
    assert (
        document(init(programs=replace(ENGINE, has_ray=False, ray_version="")))["engine"]["backend"] == "mp"
    )


def test_an_engine_that_is_not_found_is_told() -> None:
    head = init(programs=Programs())

    assert "path" not in document(head)["engine"]
    assert [line for line in head.plan.warnings if "--engine-path" in line]


def test_the_files_and_their_modes() -> None:
    plan = init().plan

    assert {path: oct(step.mode) for path, step in writes(plan).items()} == {
        CONFIG: "0o600",
        CLUSTER_KEY: "0o600",
        MANIFEST: "0o644",
    }
    assert writes(plan)[CLUSTER_KEY].content == f"{KEY}\n".encode()
    assert KEY not in "\n".join(plan_lines(plan))


@pytest.mark.parametrize(
    ("links", "address"),
    [
        ((OWN, OFFICE), "192.168.200.12"),
        ((OWN, TWIN, OFFICE), "192.168.200.12"),
        ((TWIN, OFFICE), "192.168.201.12"),
        ((replace(OWN, rdma=False), OFFICE), "192.168.200.12"),
        ((Link("lo", "127.0.0.1", ipaddress.IPv4Network("127.0.0.0/8")), OWN), "192.168.200.12"),
    ],
)
def test_the_fabric_is_the_rdma_interface(links, address) -> None:
    assert network.own_link(Network(links)).address == address


@pytest.mark.parametrize(
    ("links", "said"),
    [
        ((OFFICE,), r"no RDMA interface has an IPv4 address.*enP7s7 10.0.0.12.*--address"),
        ((), r"there are none"),
        ((TWIN, replace(TWIN, interface="x", address="192.168.201.14")), r"more than one .* say --address"),
    ],
)
def test_a_fabric_that_cannot_be_told_is_asked_for(links, said) -> None:
    with pytest.raises(NetworkError, match=said):
        network.own_link(Network(links))


def test_an_address_that_is_given_must_be_there() -> None:
    assert network.own_link(PAIR, "10.0.0.12") == OFFICE
    with pytest.raises(NetworkError, match="no interface of this machine has it"):
        network.own_link(PAIR, "10.0.0.99")


@pytest.mark.parametrize(
    ("more", "address"),
    [
        ({"names": {"spark-b": ("192.168.200.77",)}}, "192.168.200.77"),
        ({"neighbours": {"enp1s0f0np0": ("192.168.200.40",)}}, "192.168.200.40"),
        ({"neighbours": {"enP7s7": ("10.0.0.1",)}}, "192.168.200.13"),
        ({}, "192.168.200.13"),
    ],
)
def test_the_worker_is_looked_for(more, address) -> None:
    assert network.worker_address(replace(PAIR, **more), OWN, "spark-b")[0] == address


@pytest.mark.parametrize(
    ("own", "heard"),
    [(OWN, ("192.168.200.40", "192.168.200.41")), (replace(OWN, address="192.168.200.5"), ())],
)
def test_a_worker_that_cannot_be_found_is_asked_for(own, heard) -> None:
    with pytest.raises(NetworkError, match="say --worker spark-b=ADDRESS"):
        network.worker_address(Network((own,), {own.interface: heard}), own, "spark-b")


def test_a_workers_second_path_is_what_its_name_resolves_to() -> None:
    net = replace(PAIR, names={"spark-b": ("10.0.0.13",)}, neighbours={"enp1s0f0np0": ("192.168.200.13",)})

    assert document(init(net=net))["node"][1]["management_address"] == "10.0.0.13"


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        (replace(WISHES, workers=()), "who is the worker? say --worker NAME"),
        (replace(WISHES, workers=("spark-a",)), "spark-a is this machine"),
        (replace(WISHES, workers=("spark b",)), "'spark b' cannot name a node"),
        (replace(WISHES, cluster="a/b"), "'a/b' cannot name a node or a cluster"),
        (replace(WISHES, workers=("spark-b=13",)), "'13' is no IPv4 address"),
        (replace(WISHES, model=None), "which model? say --model FOLDER"),
        (replace(WISHES, model=None, models=("/m/a", "/m/b")), "(/m/a, /m/b)"),
    ],
)
def test_what_must_be_said_is_told(wishes, said) -> None:
    with pytest.raises(InitError) as refused:
        init(wishes)
    assert len(refused.value.lines) == 1
    assert said in refused.value.lines[0]


def test_a_single_model_is_found() -> None:
    head = init(replace(WISHES, model=None, models=("/srv/models/only",)))

    assert document(head)["engine"]["model"] == "/srv/models/only"
    assert "model: /srv/models/only: the only one found" in head.plan.facts


def test_three_nodes(tmp_path) -> None:
    head = init(replace(WISHES, workers=("spark-b=192.168.200.13", "spark-c=192.168.200.14")))

    assert [node["name"] for node in document(head)["node"]] == ["spark-a", "spark-b", "spark-c"]
    assert len(loaded(head.text, "spark-c", tmp_path).nodes) == 3
    assert set(head.tokens) == {"spark-b", "spark-c"}


def test_a_configuration_that_is_there_is_kept_and_its_lines_printed_again(tmp_path) -> None:
    first = init()
    edited = first.text.replace("#max_model_len = 32768", "max_model_len = 65536")
    there = host(files={CONFIG: edited.encode(), CLUSTER_KEY: b"an-older-key-0123456789\n"}, node=None)

    again = init(Wishes(), where=there)

    assert writes(again.plan) == {}
    brought = token.decode(again.tokens["spark-b"])
    assert brought.document["settings"] == {"max_model_len": 65536}
    assert brought.secrets == {"cluster_key": "an-older-key-0123456789"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a =", "is no TOML"),
        (b"\xff", "is no TOML"),
        (b"", "lacks [cluster] or [[node]]"),
        (b"cluster = 1\nnode = 2\n", "lacks [cluster] or [[node]]"),
        (b'[cluster]\nname = "a"\n[node]\nname = "b"\n', "lacks [cluster] or [[node]]"),
    ],
)
def test_a_configuration_that_is_none_is_told(content, said) -> None:
    with pytest.raises(InitError) as refused:
        init(Wishes(), where=host(files={CONFIG: content}, node=None))
    assert said in str(refused.value)


def test_force_writes_it_anew_and_keeps_the_key() -> None:
    there = host(files={CONFIG: b"# mine\n", CLUSTER_KEY: b"an-older-key-0123456789\n"}, node=None)

    head = init(replace(WISHES, force=True), where=there)

    assert writes(head.plan)[f"{CONFIG}.old"].content == b"# mine\n"
    assert CLUSTER_KEY not in writes(head.plan)
    assert head.key == "an-older-key-0123456789"


def test_a_key_within_the_configuration_travels_as_a_secret() -> None:
    there = host(files={CONFIG: init().text.replace("#key = ", "key = ", 1).encode()}, node=None)

    brought = token.decode(init(Wishes(), where=there).tokens["spark-b"])

    assert brought.secrets["cluster_key"] == "change-me-0123456789abcdef"
    assert "key" not in brought.document["cluster"]


def test_with_mosquitto_each_node_has_an_account_of_its_own() -> None:
    head = init(replace(WISHES, mosquitto=True))
    brought = token.decode(head.tokens["spark-b"])

    assert document(head)["broker"] == {"host": "192.168.200.12", "port": 1883, "username": "spark-a"}
    assert brought.document["broker"]["username"] == "spark-b"
    assert brought.secrets["broker_password"] == "word-b"
    assert writes(head.plan)["/etc/sparkd/broker_password"].content == b"word-a\n"
    assert broker.read_accounts(writes(head.plan)[BROKER_ACCOUNTS].content)["watcher"] == "word-w"
    assert [writes(head.plan)[path].mode for path in (broker.PASSWD, broker.ACL)] == [0o600, 0o640]
    argv = [step.argv for step in head.plan.steps if isinstance(step, Run)]
    assert not [word for words in argv for word in words if "word-" in word]


def test_the_account_is_found_again_for_a_later_join() -> None:
    first = init(replace(WISHES, mosquitto=True))
    there = host(files={path: step.content for path, step in writes(first.plan).items()}, node=None)

    again = plan_init(
        shipped(), there, PAIR, programs=ENGINE, wishes=Wishes(), fresh=Fresh("other", ("x", "y", "z"))
    )

    assert again.tokens == first.tokens


def test_mosquitto_that_is_not_installed_is_told() -> None:
    with pytest.raises(InitError, match="sudo apt install mosquitto"):
        init(replace(WISHES, mosquitto=True), programs=Programs())


def test_the_acl_of_the_examples_names_is_the_example() -> None:
    example = shipped().texts["etc/mosquitto/sparkd.acl"]

    assert broker.acl(example, "sparks", "spark-a", ["spark-b"]) == example
    three = broker.acl(example, "lab", "n0", ["n1", "n2"])
    assert [line for line in three.splitlines() if line.startswith("user ")] == [
        "user n0",
        "user n1",
        "user n2",
        "user watcher",
    ]
    assert "topic write sparkd/lab/node/n2/report" in three
    assert "spark-" not in three
    assert "sparks" not in three


def test_a_token_arrives_as_it_was_sent() -> None:
    sent = token.Token(
        "spark-b", "1.0", {"cluster": {"name": "ä"}, "node": [{"a": 1.5}]}, {"cluster_key": KEY}
    )
    word = token.encode(sent)

    assert token.decode(f"  {word[:30]}\n{word[30:]}\n") == sent
    assert word.isascii()
    assert not set(word) & set(" '\"$\\`!")
    assert KEY not in repr(sent)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda word: word[: len(word) // 2],
        lambda word: word[:-1],
        lambda word: word.removeprefix("sparkd1."),
        lambda word: "sparkd1." + word[9:],
        lambda word: "sparkd1.",
        lambda word: word[:20] + "#" + word[21:],
        lambda word: "",
        lambda word: word[:40] + ("A" if word[40] != "A" else "B") + word[41:],
    ],
)
def test_a_damaged_token_is_refused(spoil) -> None:
    word = token.encode(token.Token("spark-b", "1.0", {"cluster": {"name": "sparks"}}, {"cluster_key": KEY}))
    with pytest.raises(token.TokenError):
        token.decode(spoil(word))


def joined(net=WORKERS, **changes):
    """What a worker plans with the head's token."""
    head = plan_init(package(), BARE, PAIR, programs=ENGINE, wishes=WISHES, fresh=FRESH)
    word = token.decode(head.tokens["spark-b"])
    word = replace(word, **changes.pop("token", {}))
    here = join.local(word, net, live=True)
    text = join.text_of(package(), here)
    checked = probe.tried(text, word.node, dict(word.secrets))
    worker = host(files=changes.pop("files", {}), node=None, hostname="spark-b", **changes)
    return join.plan_join(package(), worker, word, here, checked, force=False), text


def test_a_worker_gets_everything_in_one_go(tmp_path) -> None:
    plan, text = joined()

    assert not plan.refusals
    assert writes(plan)[CLUSTER_KEY].content == f"{KEY}\n".encode()
    assert writes(plan)[CLUSTER_KEY].mode == 0o600
    assert writes(plan)[CONFIG].content == text.encode()
    assert "/etc/systemd/system/sparkd.service" in writes(plan)
    assert f"{CONFIG}.new" not in writes(plan)
    assert runs(plan)[0] == "systemd-sysusers sparkd.conf"
    assert loaded(text, "spark-b", tmp_path).node.interface == "enP2p1s0f1np1"


def test_a_worker_shares_the_plan_with_the_head(tmp_path) -> None:
    """Interfaces differ from machine to machine, what must be equal does not."""
    head = loaded(init().text, "spark-a", tmp_path).policy.shared_digest

    assert loaded(joined()[1], "spark-b", tmp_path).policy.shared_digest == head


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"net": Network((OFFICE,))}, "is to have the address 192.168.200.13, which this machine has not"),
        ({"token": {"version": "0.9"}}, "the head has sparkd 0.9, this machine 1.0"),
        ({"token": {"node": "spark-x"}}, "spark-x, which is no node"),
        ({"files": {CONFIG: b"# another\n"}}, "--force replaces it"),
        ({"is_root": False}, "only root"),
        ({"systemd": 249}, "systemd is 249"),
    ],
)
def test_a_worker_that_cannot_join_is_told_why(changes, said) -> None:
    plan, _ = joined(**changes)

    assert len(plan.refusals) == 1
    assert said in plan.refusals[0]


@pytest.mark.parametrize(
    "value",
    ["plain", 'quo"te \\ and \x7f\n', "ä 😀", True, 7, 1.5, ["a", 1], {"A": "b", "x y": "z"}, [], {}],
)
def test_values_survive_the_writing(value) -> None:
    assert tomllib.loads(f"key = {toml(value)}") == {"key": value}


def test_every_key_of_the_example_can_be_written() -> None:
    """With all that is commented set to what is shown: each value is found where its explanation is."""
    example = EXAMPLE.read_text()
    from config.test_example import SHOWN

    written = render(example, SHOWN)

    assert tomllib.loads(written) == SHOWN


def test_a_key_that_the_example_has_not_is_an_error() -> None:
    with pytest.raises(ValueError, match="node: there is none"):
        render(EXAMPLE.read_text(), {"node": []})
    with pytest.raises(ValueError, match=r"engine\.pth: unknown key"):
        render(EXAMPLE.read_text(), {"node": [{"name": "a"}], "engine": {"pth": "x"}})
