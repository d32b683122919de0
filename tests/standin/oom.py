"""Ray's memory kill: the numbers, the threshold, and the report that raylet.out shows."""

from dataclasses import dataclass
from typing import Any

from standin import knobs, texts

GB = 1 << 30  # Ray prints GiB and calls them GB
# 113.78 of 119.70: the reading of a real two-node start that died in graph capture.
DEFAULT_USED = 122_170_344_735
SUGGESTION = "oom_suggestion.txt"


@dataclass(frozen=True)
class Monitor:
    """The memory monitor of one node, from the RAY_* settings of its environment."""

    total: int
    refresh_ms: int
    threshold: int

    @property
    def on(self) -> bool:
        return self.refresh_ms > 0

    @property
    def share(self) -> float:
        return self.threshold / self.total


def monitor(total: int) -> Monitor:
    share = knobs.ray_setting("memory_usage_threshold", 0.95)
    refresh = int(knobs.ray_setting("memory_monitor_refresh_ms", 250))
    free = int(knobs.ray_setting("min_memory_free_bytes", -1))
    threshold = int(share * total)
    if free >= 0:
        threshold = max(threshold, total - free)
    return Monitor(total, refresh, threshold)


def started_line(watch: Monitor) -> tuple[str, str]:
    """What raylet.out says at the start: (where, text)."""
    if not watch.on:
        text = "ThresholdMemoryMonitor disabled. Specify `RAY_memory_monitor_refresh_ms` > 0 to enable the "
        text += "monitor."
        return "threshold_memory_monitor.cc:44", text
    text = f"ThresholdMemoryMonitor initialized with usage threshold at {watch.threshold} bytes "
    text += f"({watch.share * 100:.6f}% of system memory), total system memory bytes: {watch.total}, "
    return "threshold_memory_monitor.cc:53", text + f"monitor interval: {watch.refresh_ms}ms"


def above_line(watch: Monitor, used: int) -> tuple[str, str]:
    text = f"Node memory usage above threshold, used: {used}, threshold_bytes: {watch.threshold}, "
    return (
        "threshold_memory_monitor.cc:128",
        text + f"total bytes: {watch.total}, threshold fraction: {watch.share:f}",
    )


def details(watch: Monitor, used: int, node: dict[str, Any]) -> str:
    """The line that every report begins with."""
    share = used / watch.total
    text = f"Memory on the node (IP: {node['address']}, ID: {node['node_id']}) was "
    text += f"{used / GB:.2f}GB used / {watch.total / GB:.2f}GB limit ({share:f})\n"
    text += f"OOM kill reason: Memory usage {used}B exceeded threshold of {watch.threshold}B "
    return text + f"({watch.share * 100:.1f}% of {watch.total}B limit)"


def report(watch: Monitor, used: int, node: dict[str, Any], victims: list[dict[str, Any]]) -> str:
    """The kill report, from `Memory on the node` to the suggestions."""
    lines = [details(watch, used, node), texts.data("oom_object_store.txt")]
    lines += [f"Ray killed {len(victims)} worker(s) based on the killing policy", "Considered workers: ["]
    lines += [_selected(victim) for victim in victims]
    lines += ["]", "Total non-selected idle workers: 0", "Total non-selected idle workers USS bytes: 0.00GB"]
    see = "To see more information about memory usage on this node, use"
    lines.append(f"{see} `ray logs raylet.out -ip {node['address']}`")
    lines.append("Top 10 memory users: PID\tMEM(GB)\tCOMMAND")
    lines += [f"{victim['pid']}\t{victim['rss_bytes'] / GB:.2f}\t{victim['title']}" for victim in victims]
    return "\n".join(lines) + "\n suggestions: " + texts.data(SUGGESTION)


def _selected(victim: dict[str, Any]) -> str:
    text = f"Selected to kill: (Actor({victim['actor_id']}): job ID=01000000, lease ID={victim['lease_id']}, "
    text += f"task name={victim['name']}:RayWorkerProc.__init__, required resources={{GPU: 1}}, "
    text += f"pid={victim['pid']}, "
    return text + f"actual memory used={victim['rss_bytes'] / GB:.2f}GB, worker ID={victim['worker_id']})"


def summary(node: dict[str, Any], killed: int, crashed: int) -> str:
    text = f"{killed} Workers (tasks / actors) killed due to memory pressure (OOM), {crashed} Workers "
    text += "crashed due to "
    text += f"other reasons at node (ID: {node['node_id']}, IP: {node['address']}) over the last time "
    text += "period. To see "
    text += "more information about the Workers killed on this node, use "
    return text + f"`ray logs raylet.out -ip {node['address']}`\n\n" + texts.data(SUGGESTION)
