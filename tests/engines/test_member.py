"""Which units a node has, and what the digests of a plan depend on."""

from dataclasses import replace

import pytest

from engines.specs import ASKED, HEAD, NODES, SPEC, STAMP, WORKER, settings, spec
from sparkd.engines.digest import node_digest, shared_digest
from sparkd.engines.member import digests, render_unit, units_of
from sparkd.words import NO_STAMP, Backend, Role, Stamp, UnitName


def test_units():
    assert units_of(Backend.RAY, Role.HEAD) == (UnitName.RAY, UnitName.SERVE)
    assert units_of(Backend.RAY, Role.WORKER) == (UnitName.RAY,)
    assert units_of(Backend.MP, Role.WORKER) == (UnitName.SERVE,)


def test_no_such_unit():
    with pytest.raises(ValueError, match=r"spark-b \(worker\) has no unit serve"):
        render_unit(UnitName.SERVE, SPEC, "sparks", WORKER, NODES, settings=ASKED, stamp=STAMP)


def test_both_nodes_agree_on_the_shared_part_only():
    head, worker = digests(SPEC, "sparks", HEAD, NODES), digests(SPEC, "sparks", WORKER, NODES)
    assert head[0] == worker[0]
    assert head[1] != worker[1]
    assert all(len(text) == 64 and int(text, 16) >= 0 for text in (*head, *worker))


def test_digests_are_stable():
    """A change of this value makes every node of a running cluster refuse: it must be wanted."""
    assert shared_digest(SPEC, NODES, "sparks")[:16] == "77f8a59bc3eb653a"
    assert digests(SPEC, "sparks", HEAD, NODES)[1][:16] == "c5fbcaee0af115c6"


@pytest.mark.parametrize(
    "change",
    [
        {"served_name": "other"},
        {"tensor_parallel": 4},
        {"backend": Backend.MP},
        {"ray_port": 6380},
        {"extra_args": ("--x",)},
        {"vllm_version": "0.33.0"},
        {"env": (("A", "1"),)},
        {"execute_timeout_s": 60},
    ],
)
def test_shared_digest_depends_on(change):
    assert shared_digest(spec(**change), NODES, "sparks") != shared_digest(SPEC, NODES, "sparks")


@pytest.mark.parametrize(
    "change",
    [{"path": "/opt/engine/bin"}, {"home": "/home/x"}, {"ray_temp_dir": "/t"}, {"vllm_program": "/opt/vllm"}],
)
def test_paths_of_one_node_are_its_own(change):
    assert shared_digest(spec(**change), NODES, "sparks") == shared_digest(SPEC, NODES, "sparks")
    assert digests(spec(**change), "sparks", HEAD, NODES)[1] != digests(SPEC, "sparks", HEAD, NODES)[1]


def test_patch_releases_agree():
    assert shared_digest(spec(vllm_version="0.32.1"), NODES, "sparks") == shared_digest(SPEC, NODES, "sparks")


def test_model_path_over_ray_and_without():
    """Over Ray all ranks open the head's path; without, each node its own."""
    for backend, equal in ((Backend.RAY, False), (Backend.MP, True)):
        one, two = spec(backend=backend), spec(backend=backend, model="/other/Qwen3")
        assert (shared_digest(one, NODES, "sparks") == shared_digest(two, NODES, "sparks")) is equal


def test_addresses_are_shared():
    moved = (HEAD, replace(WORKER, address="192.168.200.14"))
    assert shared_digest(SPEC, moved, "sparks") != shared_digest(SPEC, NODES, "sparks")


def test_node_digest_ignores_the_stamp_but_not_the_settings():
    def digest(asked, stamp):
        return node_digest(
            [render_unit(UnitName.RAY, SPEC, "sparks", WORKER, NODES, settings=asked, stamp=stamp)]
        )

    assert digest(ASKED, STAMP) == digest(ASKED, NO_STAMP) == digest(ASKED, Stamp(4, 15))
    assert digest(settings(ray_memory_threshold=0.98), STAMP) != digest(ASKED, STAMP)
