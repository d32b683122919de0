"""/metrics: the real exposition with its names and labels, our numbers put in."""

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from standin import texts

if TYPE_CHECKING:
    from standin.vllm_engine import Engine

LINE = re.compile(r"([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)$")


def _resident() -> int:
    with Path("/proc/self/statm").open(encoding="utf-8") as file:
        return int(file.read().split()[1]) * 4096


def _values(engine: "Engine") -> dict[str, float]:
    count, finished = engine.counters, engine.counters.finished
    done = float(sum(finished.values()))
    values = {
        "vllm:num_requests_running": float(count.running),
        "vllm:kv_cache_usage_perc": count.kv_usage,
        "vllm:generation_tokens_total": float(count.generation_tokens),
        "vllm:prompt_tokens_total": float(count.prompt_tokens),
        'vllm:prompt_tokens_by_source_total{source="local_compute"}': float(count.prompt_tokens),
        "vllm:prefix_cache_queries_total": float(count.prompt_tokens),
        "vllm:time_to_first_token_seconds_count": done,
        "vllm:time_to_first_token_seconds_sum": count.first_token_s,
        "vllm:e2e_request_latency_seconds_count": done,
        "vllm:e2e_request_latency_seconds_sum": count.e2e_s,
        "process_start_time_seconds": engine.started,
        "process_resident_memory_bytes": float(_resident()),
        "process_cpu_seconds_total": time.process_time(),
        "process_open_fds": float(len([entry.name for entry in Path("/proc/self/fd").iterdir()])),
    }
    for reason in ("stop", "length", "abort", "error", "repetition"):
        key = f'vllm:request_success_total{{finished_reason="{reason}"}}'
        values[key] = float(finished.get(reason, 0))
    return values


def _find(values: dict[str, float], name: str, labels: str) -> float | None:
    """By name alone, or by name and the one label that tells the series of a name apart."""
    for label in ("finished_reason", "source"):
        if match := re.search(rf'{label}="[^"]*"', labels):
            return values.get(f"{name}{{{match.group()}}}")
    return values.get(name)


def _default(name: str, template: str, engine: "Engine") -> str:
    """Series that the stand-in does not count: creation times move to now, the rest is zero."""
    if name.endswith("_created"):
        return repr(engine.started)
    if name.startswith(("python_", "process_")) or name in {
        "vllm:engine_sleep_state",
        "vllm:cache_config_info",
    }:
        return template
    return "0.0"


def _cache_labels(labels: str, engine: "Engine") -> str:
    chosen = engine.settings
    values = {
        "gpu_memory_utilization": chosen.gpu_memory_utilization,
        "kv_cache_memory_bytes": chosen.kv_cache_memory_bytes,
        "kv_cache_max_concurrency": engine.concurrency,
        "kv_cache_size_tokens": engine.kv_tokens,
        "num_gpu_blocks": engine.kv_tokens // 16,
        "block_size": 16,
        "effective_attention_block_size": 16,
    }
    for name, value in values.items():
        labels = re.sub(rf'(?<=[{{,]){name}="[^"]*"', f'{name}="{value}"', labels)
    return labels


def render(engine: "Engine") -> str:
    """The whole page."""
    values = _values(engine)
    out = []
    for line in texts.data("metrics.txt").replace("@MODEL", engine.names[0]).split("\n"):
        match = None if line.startswith("#") else LINE.match(line)
        if match is None:
            out.append(line)
            continue
        name, labels, template = match[1], match[2] or "", match[3]
        if name == "vllm:cache_config_info":
            labels = _cache_labels(labels, engine)
        value = _find(values, name, labels)
        out.append(f"{name}{labels} {_default(name, template, engine) if value is None else repr(value)}")
    return "\n".join([*out, *_http(engine)]) + "\n"


def _http(engine: "Engine") -> list[str]:
    out = ["# HELP http_requests_total Total number of requests by method, status and handler."]
    out.append("# TYPE http_requests_total counter")
    for (handler, method, status), count in sorted(engine.counters.http.items()):
        labels = f'handler="{handler}",method="{method}",status="{status}"'
        out.append(f"http_requests_total{{{labels}}} {float(count)}")
    return out
