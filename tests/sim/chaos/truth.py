"""Is the named cause true? The world knows what it did to a generation, and what the head could read of it.

A diagnosis may name only what the world had. `unknown` (and what says no more than that something ended) is
allowed, but not where the head itself has read the proof in time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkd.core.records import Remedied
from sparkd.signals.causes import UNKNOWN

if TYPE_CHECKING:
    from sim.chaos.daemon import Daemon
    from sim.chaos.engine import Engine
    from sim.chaos.world import World

READ_S = 2.5
"""What was read so long before a decision is told was read before it was made: a disk is waited for 2 s."""
LATE_S = 60.0
"""What ended shortly before a generation began may be noticed in it."""
KILLS = ("ray_oom_kill", "kernel_oom", "cuda_oom", "memory_guard_kill")
EMPTY = "uma_host_exhaustion"
VAGUE = (UNKNOWN, "killed_unspecified", "worker_process_died", "engine_dead_unspecified", "clean_shutdown")
_ENDS = (" ended", "dies in ", " died")
_AWAY = ("a daemon crashed", "its daemon crashed", "power was lost", "shutdown was asked", "rebooted it")
# cause -> what of it the world must have blamed: any of these
HAD: dict[str, tuple[str, ...]] = {
    **{cause: (f"{cause} on ",) for cause in KILLS},
    "startup_free_memory_too_low": ("too little was free at the start",),
    "kv_cache_too_small": ("the KV cache is too small",),
    "c10d_connect_timeout": ("not all ranks came",),
    "broken_install": ("start failed",),
    "clean_shutdown": (*_ENDS, "stopped by hand"),
    "killed_unspecified": (*_ENDS, "kernel_oom on "),
    "worker_process_died": _ENDS,
    "engine_dead_unspecified": _ENDS,
    "nccl_timeout": ("nccl_timeout", "the fabric was cut"),
    "peer_lost": (*_AWAY, "ended its part", "disturbed before it was complete"),
    "ray_node_died": ("raylet", "ray of ", "ended its part", "stopped by hand", *_AWAY),
    "ray_gcs_unreachable": ("Ray's head does not answer", "ray of ", "stopped by hand", *_AWAY),
    "ray_insufficient_resources": (
        *("does not answer", "raylet", "ray of ", "stopped by hand", "joins", "disturbed"),
        *_AWAY,
    ),
    "wrong_interface": ("joins as address",),
    "engine_hang": (
        *("hangs", "stuck in ", "does not answer", "the fabric was cut", "wrong answers"),
        *_ENDS,
        *_AWAY,
    ),
}


def judged(world: World, daemon: Daemon, record: Remedied) -> None:
    """Hold a decision after a failure that was seen against the truth."""
    engine = world.engines.get(record.generation)
    if engine is None or record.explanation.startswith("counts as"):
        return
    cause, node = record.diagnosis.cause, record.diagnosis.node
    told = [*engine.blames, *engine.oddities, world.check.judge.excused.get(record.generation, "")]
    told += ["a daemon crashed" for at_s in world.check.deaths.values() if at_s > engine.since_s - LATE_S]
    had = HAD.get(cause, (cause,))
    if cause == EMPTY and _was_empty(world, daemon, engine, node):
        return
    if cause != UNKNOWN and not any(part in text for part in had for text in told):
        text = f"generation {record.generation}: {cause}, but it had {engine.blames[:6]}"
        world.violate("a named cause is true", text)
    if cause in KILLS and node and f"{cause} on {node}" not in told:
        world.violate("a named cause is true", f"{cause} on {node}, but it had {engine.blames[:6]}")
    if cause in VAGUE:
        _nothing_was_proved(world, daemon, engine, cause)


def _was_empty(world: World, daemon: Daemon, engine: Engine, node: str | None) -> bool:
    """Whether the node was measured as empty as it is said to have been; who killed then left no word.

    The last reading before the start stands until the next one.
    """
    machine = world.machines[node or world.head]
    floor = daemon.policy.guard_floor_bytes + 0.01 * world.plan.total
    before = [at_s for at_s, _ in machine.readings if at_s < engine.since_s]
    since_s = max(before, default=engine.since_s)
    return any(at_s >= since_s and free < floor for at_s, free in machine.readings)


def _nothing_was_proved(world: World, daemon: Daemon, engine: Engine, cause: str) -> None:
    for at_s, instance, proved in engine.proofs:
        if instance == daemon.instance and at_s < world.now - READ_S:
            text = f"generation {engine.generation}: {cause}, though {proved} was read at {at_s:.1f} s"
            world.violate("what is proved is named", text)
