"""A boot that nobody ordered is the last witness of what the node could not say."""

from __future__ import annotations

import pytest

from sparkd.engines.lines import read_line
from sparkd.signals.assess import assess
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.signals.model import Diagnosis, Record

CATALOGUE = packaged_catalogue()
DRIVER = (
    "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from x"
)
BOOT = [
    "-- Boot 3f4c0720014fcf5f28c0e88640edb7bd --",
    "Linux version 6.17.0-1029-nvidia (b@h) #29-Ubuntu SMP",
]
SPOKE = "mlx5_core 0000:01:00.0 enp1s0f0np0: Link up"
DOWN = "Reached target reboot.target - System Reboot."
MEETS = "world_size=2 rank=0 local_rank=0 distributed_init_method=tcp://10.77.0.1:29501 backend=nccl"
TIMEOUT = "TimeoutError: RPC call to execute_model timed out."
WAITED = (
    'File "/v/vllm/distributed/device_communicators/shm_broadcast.py", line 864, in acquire_read\n'
    "    raise TimeoutError"
)


def judged(*said: tuple[float, str, str]) -> Diagnosis:
    records = [Record(f"{node}.log", node, text, at_s=at_s) for at_s, node, text in said]
    return assess(records, CATALOGUE, read_line=read_line).diagnosis


def boot(at_s: float, node: str) -> list[tuple[float, str, str]]:
    return [(at_s + place, node, line) for place, line in enumerate(BOOT)]


def test_a_driver_without_memory_and_then_a_boot_is_an_exhausted_node() -> None:
    found = judged((0.0, "b", DRIVER), *boot(400.0, "b"))
    assert (found.cause, found.node) == ("uma_host_exhaustion", "b")
    assert found.confidence > 0.9


@pytest.mark.parametrize(
    "said",
    [
        [(0.0, "b", DRIVER)],
        boot(400.0, "b"),
        [(0.0, "b", SPOKE), *boot(400.0, "b")],
        [(0.0, "b", DRIVER), (390.0, "b", DOWN), *boot(400.0, "b")],
        [(0.0, "b", DRIVER), *boot(9000.0, "b")],
        [(0.0, "a", DRIVER), (0.0, "b", SPOKE), *boot(400.0, "b")],
        [*boot(0.0, "b"), (5.0, "b", DRIVER)],
    ],
)
def test_a_boot_that_was_ordered_or_tells_of_nothing_is_harmless(said: list[tuple[float, str, str]]) -> None:
    assert judged(*said).cause == "none"


@pytest.mark.parametrize("at_s", [50.0, 350.0, 900.0])
def test_a_spread_engine_that_ran_out_of_time_lost_the_node_that_booted(at_s: float) -> None:
    said = [(0.0, "a", MEETS), (1.0, "b", SPOKE), (300.0, "a", TIMEOUT), *boot(at_s, "b")]
    found = judged(*sorted(said, key=lambda row: row[0]))
    assert (found.cause, found.node) == ("peer_lost", "b")
    ordered = [*said, (at_s - 9.0, "b", DOWN)]
    assert judged(*sorted(ordered, key=lambda row: row[0])).cause != "peer_lost"


@pytest.mark.parametrize("timeout", [TIMEOUT, WAITED])
def test_a_time_out_of_a_spread_engine_alone_is_no_hang(timeout: str) -> None:
    assert judged((0.0, "a", MEETS), (300.0, "a", timeout)).cause == "unknown"
    assert judged((300.0, "a", timeout)).cause == "engine_hang"
