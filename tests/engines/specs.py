"""A pair of nodes and an engine, as the tests of this directory use them."""

from dataclasses import replace
from typing import Any

from sparkd.engines.model import EngineSpec, NodeSpec, Rendered
from sparkd.words import Role, Settings, Stamp

HEAD = NodeSpec("spark-a", Role.HEAD, 0, "192.168.200.12", "enp1s0f0np0", (("NCCL_IB_HCA", "rocep1s0f0"),))
WORKER = NodeSpec(
    "spark-b", Role.WORKER, 1, "192.168.200.13", "enP2p1s0f1np1", (("NCCL_IB_HCA", "roceP2p1s0f1"),)
)
NODES = (HEAD, WORKER)
SPEC = EngineSpec("/srv/models/Qwen3", "qwen", vllm_version="0.32.0", ray_version="2.60.0")
STAMP = Stamp(3, 14)
ASKED = Settings()


def spec(**changes: Any) -> EngineSpec:
    return replace(SPEC, **changes)


def settings(**changes: Any) -> Settings:
    return replace(ASKED, **changes)


def env(rendered: Rendered) -> dict[str, str]:
    return dict(rendered.env)
