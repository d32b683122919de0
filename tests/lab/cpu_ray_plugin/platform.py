from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar

from vllm.platforms.cpu import CpuPlatform

if TYPE_CHECKING:
    from vllm.config import VllmConfig  # not at run time: vLLM makes its configuration with this platform


class CpuRayPlatform(CpuPlatform):
    """vLLM's CPU platform with a resource that Ray knows: each node pretends `--num-gpus=1`."""

    ray_device_key = "GPU"
    ray_noset_device_env_vars: ClassVar[list[str]] = []

    @classmethod
    def device_control_id_to_physical_device_id(cls, device_id: str) -> int:
        """Ray hands out device numbers; on a CPU they are only names."""
        return int(device_id)

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """With SPARKD_CPU_RAY_FORK=1 EngineCore is forked, which spares a start 15 s of imports.

        The CPU platform alone insists on spawning. A forked EngineCore also holds the API server's listening
        socket: after a SIGKILL of the API server alone, the port hangs instead of refusing.
        """
        super().check_and_update_config(vllm_config)
        if os.environ.get("SPARKD_CPU_RAY_FORK") == "1":
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
