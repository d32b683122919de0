"""A plan's estimate for a person, and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparkd.cli.layout import columns
from sparkd.sizing.advice import Advice
from sparkd.sizing.estimate import Need
from sparkd.sizing.model import Request, Source
from sparkd.sizing.verdict import VLLMS_OWN, Judged, Outcome, gib
from sparkd.words import Phase

VERSION = 1
_HEADLINE = {
    Outcome.FITS: "it fits",
    Outcome.TOO_LARGE: "it does not fit",
    Outcome.UNKNOWN: "nothing can be said",
}


_START = "what to do: start it; sparkd follows the launch, measures it, and lowers what proves too much"


def plan_text(folder: Path, request: Request, advice: Advice) -> str:
    """Return the whole answer."""
    asked = advice.asked
    parts = [
        _head(folder, request, asked),
        _sizes(asked),
        _phases(asked),
        _answer(advice),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _head(folder: Path, request: Request, asked: Judged) -> list[str]:
    checkpoint, layout = request.checkpoint, request.layout
    method = str(checkpoint.scheme.get("quant_method", "")) or "not quantised"
    node, version = request.node, layout.vllm_version or "of unknown version"
    version += ", the CPU build" if layout.cpu else ""
    free = "free: not given" if node.available_bytes is None else f"{gib(node.available_bytes)} available"
    files = len(checkpoint.file_bytes)
    spread = f"tp {layout.tensor_parallel}" + (
        f" · pp {layout.pipeline_parallel}" if layout.pipeline_parallel > 1 else ""
    )
    whole = gib(sum(checkpoint.file_bytes))
    return columns(
        [
            ("model", f"{folder}   {checkpoint.architecture or '?'} · {method} · {whole} in {files} files"),
            ("asked", f"{spread} · {layout.backend} · vllm {version} · {_asked(request)}"),
            (
                "node",
                f"{gib(node.total_bytes)}, {free} · {gib(asked.limit.bytes)} may be used ({asked.limit.why})",
            ),
        ]
    )


def _asked(request: Request) -> str:
    settings = request.settings
    said = [f"utilisation {settings.gpu_memory_utilization:g}"]
    if settings.kv_cache_bytes is not None:
        said.append(f"KV cache {gib(settings.kv_cache_bytes)}")
    if settings.max_num_batched_tokens is not None:
        said.append(f"{settings.max_num_batched_tokens} tokens a step")
    if settings.max_num_seqs is not None:
        said.append(f"{settings.max_num_seqs} requests")
    return " · ".join([*said, f"graphs {settings.cudagraph}"])


def _sizes(asked: Judged) -> list[str]:
    sizes = asked.sizes
    weights = sizes.weights
    if weights.exact:
        told = f"{gib(weights.bytes)} a rank: {gib(weights.split_bytes)} split"
        told += f", {gib(weights.whole_bytes)} on each"
        told += f", {gib(weights.derived_bytes)} made from them" if weights.derived_bytes else ""
    else:
        told = f"{gib(weights.least_bytes)} to {gib(weights.bytes)} a rank: not known how they are split"
    rows = [("weights", told), ("KV cache", _cache(asked))]
    if sizes.step_bytes is not None:
        rows.append(("a step", f"{gib(sizes.step_bytes)}, declared: the first launch measures it"))
    return columns(rows)


def _cache(asked: Judged) -> str:
    sizes = asked.sizes
    if sizes.layers.unknown:
        return f"unknown: {sizes.layers.unknown}"
    said = [f"{sizes.cache.token_bytes / 1024:.1f} KiB a token"]
    if sizes.kv_cache_bytes is not None:
        said.append(f"{gib(sizes.kv_cache_bytes)} a rank")
    if sizes.max_model_len is not None:
        one = sizes.cache.request_bytes(sizes.max_model_len)
        said.append(f"a request of {sizes.max_model_len} tokens takes {gib(one)}")
        if sizes.kv_cache_bytes and one:
            said.append(f"{sizes.kv_cache_bytes / one:.3g} of them fit")
    return " · ".join(said)


def _phases(asked: Judged) -> list[str]:
    if not asked.needs:
        return []
    failing = {failure.phase: failure for failure in asked.failures}
    rows = [("phase", "needs", "left", "", "mostly")]
    for need in asked.needs:
        left = asked.limit.bytes - need.bytes
        mark = "✗" if need.phase in failing else "✓"
        own = need.phase in failing and failing[need.phase].cause in VLLMS_OWN
        told = f"vLLM's own check, told below; {_mostly(need)}" if own else _mostly(need)
        rows.append((_named(need.phase), gib(need.bytes), gib(left), mark, told))
    return columns(rows)


def _mostly(need: Need) -> str:
    largest = sorted(need.parts, key=lambda part: -abs(part.bytes))[:2]
    told = ", ".join(f"{part.name} {gib(part.bytes)}" for part in largest)
    if need.page_cache_bytes:
        told += f"; reading passes {gib(need.page_cache_bytes)} through the page cache"
    return told


def _named(phase: Phase) -> str:
    return phase.value.replace("_", " ")


def _answer(advice: Advice) -> list[str]:
    asked = advice.asked
    if asked.outcome is Outcome.REFUSED:
        lines = [asked.failures[0].text]
    else:
        lines = [f"{_HEADLINE[asked.outcome]}{f': {asked.unknown}' if asked.unknown else ''}"]
        lines += [f"  {failure.text}" for failure in asked.failures[:1]]
    if advice.changes:
        lines.append(f"settings that {'may ' if advice.fitting is None else ''}fit, least harmful first:")
        rows = [(f"  {c.setting}", f"{c.before} → {c.after}", c.why) for c in advice.changes]
        lines += columns(rows)
    if asked.outcome is Outcome.UNKNOWN:
        lines.append(_START)
    if advice.only_you:
        lines.append(advice.only_you if advice.changes else f"only you can: {advice.only_you}")
    lines += [f"note: {warning}" for warning in asked.sizes.warnings]
    if any(part.source is Source.DECLARED for need in asked.needs for part in need.parts):
        lines.append(
            "note: weights and KV bytes are counted; the rest is typical, not measured (docs/sizing.md)"
        )
    return lines


def document(folder: Path, request: Request, advice: Advice) -> dict[str, Any]:
    """Return the answer as JSON; what is unknown is null."""
    asked, sizes = advice.asked, advice.asked.sizes
    weights, known = sizes.weights, not sizes.layers.unknown
    tokens = sizes.max_model_len
    return {
        "version": VERSION,
        "model": str(folder),
        "architecture": request.checkpoint.architecture or None,
        "outcome": asked.outcome.value,
        "unknown": asked.unknown or None,
        "weights_bytes": weights.bytes if weights.exact else None,
        "weights_bounds_bytes": [weights.least_bytes, weights.bytes],
        "kv_token_bytes": sizes.cache.token_bytes if known else None,
        "kv_cache_bytes": sizes.kv_cache_bytes,
        "kv_request_bytes": sizes.cache.request_bytes(tokens) if known and tokens else None,
        "max_model_len": tokens,
        "limit": {"bytes": asked.limit.bytes, "why": asked.limit.why},
        "phases": [_need(need) for need in asked.needs],
        "failures": [
            {"phase": f.phase.value, "cause": f.cause, "over_bytes": f.over_bytes, "text": f.text}
            for f in asked.failures
        ],
        "changes": [
            {"setting": c.setting, "before": c.before, "after": c.after, "why": c.why} for c in advice.changes
        ],
        "fits_after_changes": advice.fitting is not None,
        "only_you": advice.only_you or None,
        "warnings": list(sizes.warnings),
    }


def _need(need: Need) -> dict[str, Any]:
    parts = [
        {"name": part.name, "bytes": part.bytes, "source": part.source.value, "why": part.why}
        for part in need.parts
    ]
    return {
        "phase": need.phase.value,
        "bytes": need.bytes,
        "page_cache_bytes": need.page_cache_bytes,
        "parts": parts,
    }
