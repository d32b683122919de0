"""The two sides of the contract: the stand-in and the real programs, started by the same words."""

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ports import free_port
from standin.run import BIN, Program, get
from standin.wait import wait_until

LAB_MODEL = Path(__file__).resolve().parents[1] / "lab" / "model.py"
ADDRESS = "127.0.0.2"  # Ray takes 127.0.0.1 for "this host" and puts its outer address there


@dataclass(frozen=True)
class Side:
    """How to start one side, and how patient to be with it."""

    name: str
    ray: str
    vllm: str
    model: str
    patience_s: float
    environment: dict[str, str] = field(default_factory=dict)

    def start(self, command: list[str], **more: str) -> Program:
        return Program(command, {**os.environ, **self.environment, **more})


def standin() -> Side:
    model = "tiny/model"
    return Side(
        "stand-in",
        f"{BIN}/ray",
        f"{BIN}/vllm",
        model,
        20.0,
        {"SPARKD_STANDIN_MODEL_MAX_LEN": "2048", "SPARKD_STANDIN_WEIGHTS_BYTES": "2e9"},
    )


def real() -> Side:
    """The environment that SPARKD_ENGINE_ENV names; its absence is a skip with the reason."""
    given = os.environ.get("SPARKD_ENGINE_ENV")
    if not given:
        pytest.skip("SPARKD_ENGINE_ENV names no environment with the real Ray and vLLM")
    made = subprocess.run([f"{given}/bin/python", str(LAB_MODEL)], capture_output=True, text=True, check=True)
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    environment |= {"OMP_NUM_THREADS": "1", "VLLM_HOST_IP": ADDRESS}
    environment["PATH"] = f"{given}/bin:{os.environ['PATH']}"
    model = made.stdout.strip().split("\n")[-1]
    return Side("real", f"{given}/bin/ray", f"{given}/bin/vllm", model, 300.0, environment)


@dataclass
class Server:
    """A `vllm serve` with one rank on this machine."""

    side: Side
    program: Program
    url: str

    def health(self) -> int:
        return get(self.url + "/health")[0]

    def ready(self) -> None:
        self.program.both.wait_for("Application startup complete", self.side.patience_s)
        wait_until(lambda: self.health() == 200, 15, "health")


def serve(side: Side, *options: str, port: int = 0) -> Server:
    port = port or free_port(ADDRESS)
    command = [
        side.vllm,
        "serve",
        side.model,
        "--host",
        ADDRESS,
        "--port",
        str(port),
        "--served-model-name",
        "m",
    ]
    command += ["--max-model-len", "512", "--enforce-eager", *options]
    return Server(side, side.start(command), f"http://{ADDRESS}:{port}")


def ray_head(side: Side, temp_dir: Path, **more: str) -> tuple[Program, str]:
    """`ray start --head --block` and its GCS address."""
    port = free_port(ADDRESS)
    command = [side.ray, "start", "--head", f"--node-ip-address={ADDRESS}", f"--port={port}", "--num-gpus=1"]
    command += [f"--temp-dir={temp_dir}", "--block", "--disable-usage-stats", "--include-dashboard=false"]
    program = side.start([*command, "--object-store-memory=80000000"], RAY_AUTH_MODE="disabled", **more)
    return program, f"{ADDRESS}:{port}"
