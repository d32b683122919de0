"""Records of one life, literal: a memory failure during graph capture and its recovery."""

from __future__ import annotations

from dataclasses import replace

from sparkd.core.records import (
    IncidentClosed,
    IncidentOpened,
    PhaseChanged,
    Remedied,
    SettingsAdopted,
    StampAdvanced,
    Times,
    Verified,
)
from sparkd.signals.model import Diagnosis, Quantity, Quote
from sparkd.words import Phase, Settings, Stamp

ASKED = Settings()
LOWERED = replace(ASKED, ray_memory_threshold=None, kv_cache_bytes=47_889_884_774)
WHY = (
    "spark-a: Ray's memory monitor killed worker rank 0 during CUDA graph capture "
    "at 113.78 of 119.70 GiB (95.05 %)"
)
DIAGNOSIS = Diagnosis(
    cause="ray_oom_kill",
    phase=Phase.CAPTURING_GRAPHS,
    node="spark-a",
    transient=False,
    confidence=0.97,
    explanation=WHY,
    rank=0,
    quantities=(Quantity("used_bytes", 122e9), Quantity("slope", float("nan"))),
    evidence=(Quote("spark-a", "raylet.out", "03:26:09.871", "113.78GB used / 119.70GB limit"),),
    cascade=(Quote("spark-b", "serve log", "03:26:10.4", "RayWorkerProc rank=[0] died", "cascade"),),
)
TIMES = Times(
    detected_s=100.0,
    fence_ordered_s=100.0,
    decided_s=101.9,
    emptied_s=104.0,
    fenced_s=106.0,
    launched_s=116.0,
    serving_s=971.0,
)


def opened(number=7):
    return IncidentOpened(number, 13, Phase.CAPTURING_GRAPHS, "spark-a: ray_kill_details")


def remedied(number=7):
    return Remedied(
        incident=number,
        generation=13,
        diagnosis=DIAGNOSIS,
        action="relaunch",
        explanation="Ray monitor off, the guard watches instead; KV cache 49.1 → 44.6 GiB",
        settings_before=ASKED,
        settings_after=LOWERED,
        backoff_s=10.0,
        times=replace(TIMES, launched_s=None, serving_s=None),
    )


def closed(number=7, outcome="recovered"):
    return IncidentClosed(number, outcome, "ray_oom_kill", 14, 1, TIMES)


def life(number=7):
    """Return the records of the steps of one incident, in order."""
    moved = PhaseChanged(13, Phase.CAPTURING_GRAPHS, Phase.FAILING, "spark-a: ray_kill_details", 31.0)
    return [
        [opened(number), moved],
        [remedied(number), SettingsAdopted(LOWERED, "KV cache 49.1 → 44.6 GiB")],
        [StampAdvanced(Stamp(3, 14))],
        [Verified(14, 0.412, 855.0), closed(number)],
    ]
