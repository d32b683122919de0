"""Other programs in the engine's log: a journal or a compose project has the lines of many.

Where one unit of a log speaks as an engine, a unit that never does is another program: that it lacks a
module, finds its port taken, gets no memory of the device, crashes or is stopped says nothing of the engine.
What tells of the node (its memory, GPU, fabric), and programs that watch over units or belong to the engine,
are always heard.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from sparkd.signals import wrapping
from sparkd.signals.causes import UNKNOWN
from sparkd.signals.model import Record
from sparkd.signals.precedence import INSTALLED

# What ends a program of any kind.
CAUSES = INSTALLED | {
    "clean_shutdown",
    "cuda_illegal_memory_access",
    "cuda_oom",
    "device_side_assert",
    "engine_dead_unspecified",
    "engine_hang",
    "killed_unspecified",
    "kv_cache_too_small",
    "nccl_init_failure",
    "nccl_remote_error",
    "nccl_socket_connect",
    "nccl_timeout",
    "port_in_use",
    "worker_process_died",
    UNKNOWN,
}
WHY = "said by another program"
# Who tells of others, and what an engine's own processes may be called: whole words of a unit's name, and
# what words may begin with. What half of all programs are called (node, api, server, python) tells nothing.
_WORDS = frozenset(
    {
        "conmon",
        "cri",
        "crio",
        "dcgm",
        "earlyoom",
        "engine",
        "gcs",
        "infer",
        "inference",
        "llm",
        "nohang",
        "nv",
        "oomd",
        "podman",
        "rank",
        "ray",
        "raylet",
        "serve",
        "spark",
        "worker",
        "workers",
    }
)
_STEMS = (
    "audit",
    "containerd",
    "docker",
    "enginecor",
    "kernel",
    "kubelet",
    "nvidia",
    "slurm",
    "sparkd",
    "systemd",
    "vllm",
)
_APART = re.compile(r"[^a-z]+")


def of(speakers: Iterable[str], sources: Iterable[str]) -> tuple[str, ...]:
    """Return the *sources* that are other programs than those that speak as an engine in the same log.

    A source is called after its log and, where the log has several writers, after the unit that wrote it.
    """
    engines = set(speakers)
    logs = {log for log, unit in map(_split, engines) if unit}
    return tuple(
        source
        for source in dict.fromkeys(sources)
        if source not in engines and _split(source)[0] in logs and not _is_heard(_split(source)[1])
    )


def without(whole: Record, speakers: Sequence[str]) -> Record:
    """Return the text of a short log without the lines of other programs."""
    if not any(_split(source)[1] for source in speakers):
        return whole
    lines = [(wrapping.unwrap(line).unit, line) for line in whole.text.split("\n")]
    named = {unit: f"{whole.source} {unit}" for unit, _ in lines if unit}
    foreign = of(speakers, named.values())
    kept = [line for unit, line in lines if named.get(unit or "") not in foreign]
    return replace(whole, text="\n".join(kept))


def _split(source: str) -> tuple[str, str]:
    """Return the log and the unit; a name with a dot is a file's, and no unit's."""
    log, _, unit = source.rpartition(" ")
    return (log, unit) if log and "." not in unit else (source, "")


def _is_heard(unit: str) -> bool:
    words = _APART.split(unit.lower())
    return not unit or any(word in _WORDS or word.startswith(_STEMS) for word in words)
