from typing import ClassVar

from vllm.platforms.cpu import CpuPlatform


class CpuRayPlatform(CpuPlatform):
    """vLLM's CPU platform with a resource that Ray knows: nodes are started with a pretended `--num-gpus=1`."""

    ray_device_key = "GPU"
    ray_noset_device_env_vars: ClassVar[list[str]] = []

    @classmethod
    def device_control_id_to_physical_device_id(cls, device_id: str) -> int:
        """Ray hands out device numbers; on a CPU they are only names."""
        return int(device_id)
