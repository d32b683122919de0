"""Other programs in the engine's log: a journal or a compose project has the lines of many.

Where one unit of a log speaks as an engine, a unit that never does is another program: that it lacks a
module, finds its port taken, gets no memory of the device, crashes or is stopped says nothing of the engine.
What tells of the node (its memory, GPU, fabric), and programs that watch over units or belong to the engine,
are always heard.

A supervisor (systemd, compose, supervisord) tells of the ends of many: such a line is said for the unit that
it is about, which is another program wherever it is not called as an engine is. A service, and what belongs
to the system, is another program even where no engine speaks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from sparkd.signals import wrapping
from sparkd.signals.causes import UNKNOWN
from sparkd.signals.model import Record, Signal
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
# What a supervisor says of a unit's end, beside these causes.
REPORTS = frozenset({"oom_kill_reported", "container_oom_killed"})
WHY = "said by another program"
# Before the name of a unit that did not speak itself: somebody told of it. A container has two: a project has
# few, and what they print may be cut; a system has a hundred services, and the engine's is called as one.
_TOLD_OF = "~"
# What words of a unit's or a container's name tell, whole ones and what words may begin with: it is the
# engine's, after what it does or after its model; or it watches over units and tells of them. What half of
# all programs are called (node, api, server) tells nothing; another engine beside this is another program.
_ENGINES = frozenset(
    {
        "engine",
        "gcs",
        "infer",
        "inference",
        "llm",
        "rank",
        "ray",
        "raylet",
        "serve",
        "serving",
        "worker",
        "workers",
    }
)
_ENGINE_STEMS = (
    *("enginecor", "slurm", "sparkd", "vllm"),
    *(
        "deepseek",
        "gemma",
        "glm",
        "gpt",
        "kimi",
        "llama",
        "minimax",
        "mistral",
        "mixtral",
        "nemotron",
        "qwen",
    ),
)
_WATCHERS = frozenset(
    {"conmon", "cri", "crio", "dcgm", "earlyoom", "nohang", "nv", "oomd", "podman", "spark"}
)
_WATCHER_STEMS = ("audit", "containerd", "docker", "kernel", "kubelet", "nvidia", "systemd")
# The system's own units, and what watches or fronts others: in no log are they the engine.
_SYSTEM = re.compile(
    r"(?i:accounts-daemon|alertmanager|apache|apparmor|apt|audit|avahi|blackbox|bluetooth|caddy|chrony|colord"
    r"|cron|cups|dbus|dcgm|dhc|dnsmasq|filebeat|firewalld|fluent|fwupd|gdm|gnome|grafana|gvfs|haproxy|httpd"
    r"|irqbalance|keepalived|kernel|logrotate|loki|man-db|modemmanager|motd|multipathd|networkd?-?(?:manager|dispatcher)"
    r"|nginx|node[_-]exporter|ntp|nvidia-persistenced|nvidia-power|packagekit|pipewire|plymouth|polkit|postfix"
    r"|prometheus|promtail|pulseaudio|resolvconf|rsyslog|rtkit|session-|smartd|snapd?\b|snap-|ssh|sudo\b|su\b"
    r"|systemd-|tailscale|telegraf|thermald|tracker|traefik|udev|udisks|unattended|upower|user@|app-(?!\d+$)|wireplumber"
    r"|wpa_supplicant|xdg|zabbix)"
)
# Whose end a line tells of.
_UNIT = r"(?P<unit>[\w@:\\-][\w@.:\\-]{0,120}?)\.(?:service|scope|socket|timer|mount)\b"
_SUBJECTS = (
    re.compile(rf"^(?:Failed to start |Stopping |Stopped |Starting |Started )?{_UNIT}"),
    re.compile(r"^(?:[Cc]ontainer )?(?P<unit>[\w./-]{1,120}) exited with (?:exit )?code"),
    re.compile(r"^(?:[A-Z]+ )?exited: (?P<unit>[\w.:-]{1,120}) \("),
    re.compile(r"\bProcess \d+ \((?P<unit>[^)]{1,60})\) of user \d+ dumped core"),
)
# The kernel's ring buffer: seconds, padded to five places.
_RING = re.compile(r"\[(?: +\d+|\d{5,})\.\d{6}\]")
# What the kernel says of itself when it cannot go on.
_PANICS = re.compile(
    r"\b(?:[Kk]ernel panic|BUG:|Oops|Internal error:|(?:hard|soft) (?:LOCKUP|lockup)|[Hh]ung task)"
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
        if source not in engines and _is_another(*_split(source), logs, beside=bool(engines))
    )


def may_be_anybodys(signal: Signal) -> bool:
    """Return whether what *signal* tells may happen to any program, and not to the node."""
    return signal.cause in CAUSES or signal.id in REPORTS


def _is_another(log: str, unit: str, logs: set[str], *, beside: bool) -> bool:
    if unit.startswith(_TOLD_OF):
        named = unit.lstrip(_TOLD_OF)
        return beside or unit == _TOLD_OF + named or _SYSTEM.match(named) is not None
    if unit != "kernel" and _SYSTEM.match(unit):
        return True
    return log in logs and not _is_heard(unit)


def attributed(signal: Signal, speakers: Sequence[str]) -> Signal:
    """Return what a supervisor says of another unit's end as said of that; *speakers* speak as engines."""
    unit = subject_of(signal.quote)
    if unit is None or is_engine(unit):
        return signal
    log = _split(signal.source)[0]
    if f"{log} {unit}" in speakers:
        return signal
    marks = _TOLD_OF if _is_service(signal.quote) else 2 * _TOLD_OF
    return replace(signal, source=f"{log} {marks}{unit.replace('.', '-').replace(' ', '-')}")


def _is_service(text: str) -> bool:
    return _SUBJECTS[0].search(text) is not None


def subject_of(text: str) -> str | None:
    """Return the unit or container of whose end a line tells, None where it names none."""
    found = next((found for form in _SUBJECTS if (found := form.search(text))), None)
    return None if found is None else found["unit"].rpartition("/")[2]


def is_engine(unit: str) -> bool:
    """Return whether a unit, a container or a process is called as an engine's is."""
    return _has(unit, _ENGINES, _ENGINE_STEMS) or unit.startswith("python")


def _has(unit: str, words: frozenset[str], stems: tuple[str, ...]) -> bool:
    return any(word in words or word.startswith(stems) for word in _APART.split(unit.lower()))


def without_chatter(whole: Record, speakers: Sequence[str]) -> Record:
    """Return the text of a short log without what kernel and system say of themselves, and of other units.

    Nearly every boot has words of failure in it, and none of them is an engine's.
    """
    units = {_split(source)[1] for source in speakers}
    kept = [line for line in whole.text.split("\n") if not _is_chatter(line, units)]
    return replace(whole, text="\n".join(kept))


def _is_chatter(line: str, speaking: set[str]) -> bool:
    unwrapped = wrapping.unwrap(line)
    unit, body = unwrapped.unit or "", unwrapped.body
    if unit == "kernel" or (not unit and _RING.match(line)):
        return _PANICS.search(body) is None
    subject = subject_of(body)
    if subject is not None:
        others = subject not in speaking and not is_engine(subject)
        beside = others and (bool(speaking) or _is_service(body))
        return beside or _SYSTEM.match(subject) is not None
    if unit == "systemd":
        return not is_engine(body)
    return _SYSTEM.match(unit) is not None


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
    return not unit or _has(unit, _ENGINES, _ENGINE_STEMS) or _has(unit, _WATCHERS, _WATCHER_STEMS)
