"""A vLLM platform for the lab: a CPU that Ray can schedule as if it were one GPU.

Installed into the engine's environment by engine_env.py and silent unless `SPARKD_CPU_RAY=1`.
"""

import os


def register() -> str | None:
    """Name the platform class for vLLM, or nothing when the lab does not ask for it."""
    if os.environ.get("SPARKD_CPU_RAY") != "1":
        return None
    return "cpu_ray_plugin.platform.CpuRayPlatform"
