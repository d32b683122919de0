"""The ray unit: `ray start` in the foreground, on every node of the Ray backend."""

from __future__ import annotations

from sparkd.engines.environment import Env, compose, interfaces, pinned, proposed, ray_auth
from sparkd.engines.model import EngineSpec, NodeSpec, Rendered
from sparkd.engines.versions import ray_options
from sparkd.releases import RayOptions
from sparkd.words import Role, Settings, Stamp, UnitName

# A socket below the temporary directory, at its longest (ray/_private/node.py): the session's name carries
# date, time, microseconds and a pid of at most 7 digits (Linux: pid_max 4194304).
SOCKET_TAIL = "/session_2026-11-30_01-16-56_994123_4194304/sockets/plasma_store"
# Linux: sun_path has 108 bytes with its final zero.
SOCKET_PATH_MAX = 107
TEMP_DIR_MAX = SOCKET_PATH_MAX - len(SOCKET_TAIL)


def render_ray(
    spec: EngineSpec, cluster: str, node: NodeSpec, head: NodeSpec, *, settings: Settings, stamp: Stamp
) -> Rendered:
    """Return the ray unit of *node*: its whole argv and environment."""
    options, warnings = ray_options(spec.ray_version)
    env = compose(
        proposed(),
        interfaces(node),
        spec.env,
        node.env,
        pinned(spec, cluster, node, stamp, UnitName.RAY),
        ray_auth(spec),
        _health(spec) if node.role is Role.HEAD else (),
        _memory_monitor(settings),
    )
    return Rendered(
        unit=UnitName.RAY,
        stamp=stamp,
        argv=_argv(spec, node, head),
        env=env,
        warnings=(*warnings, *_warnings(spec, node, options)),
        settings=settings,
    )


def _argv(spec: EngineSpec, node: NodeSpec, head: NodeSpec) -> tuple[str, ...]:
    gpus = () if spec.ray_num_gpus is None else (f"--num-gpus={spec.ray_num_gpus}",)
    return (
        spec.ray_program,
        "start",
        *_place(spec, node, head),
        f"--node-ip-address={node.address}",
        *gpus,
        f"--object-store-memory={spec.ray_object_store_bytes}",
        f"--temp-dir={spec.ray_temp_dir}",
        "--disable-usage-stats",
        "--log-color=false",
        "--block",
        *spec.ray_extra_args,
    )


def _place(spec: EngineSpec, node: NodeSpec, head: NodeSpec) -> tuple[str, ...]:
    """Ray refuses --port and --include-dashboard on a node that is not the head (scripts.py)."""
    if node.role is Role.HEAD:
        return ("--head", f"--port={spec.ray_port}", "--include-dashboard=false")
    return (f"--address={head.address}:{spec.ray_port}",)


def _health(spec: EngineSpec) -> Env:
    """The GCS checks the nodes: only the head's environment counts (measured)."""
    return (
        ("RAY_health_check_initial_delay_ms", str(spec.health_period_ms)),
        ("RAY_health_check_period_ms", str(spec.health_period_ms)),
        ("RAY_health_check_timeout_ms", str(spec.health_timeout_ms)),
        ("RAY_health_check_failure_threshold", str(spec.health_failures)),
    )


def _memory_monitor(settings: Settings) -> Env:
    """Each node's raylet reads its own; 0 ms turns the monitor off."""
    if settings.ray_memory_threshold is None:
        return (("RAY_memory_monitor_refresh_ms", "0"),)
    return (("RAY_memory_usage_threshold", f"{settings.ray_memory_threshold:g}"),)


def _warnings(spec: EngineSpec, node: NodeSpec, options: RayOptions) -> tuple[str, ...]:
    warnings = []
    if spec.ray_auth_token_path is not None and not options.token_auth:
        warnings.append(f"Ray {spec.ray_version} has no token authentication (2.52 has): it runs open")
    if node.role is not Role.HEAD and not options.worker_temp_dir:
        warnings.append(f"Ray {spec.ray_version} uses the head's temporary directory on every node")
    return tuple(warnings)
