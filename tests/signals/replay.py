"""Reads recorded logs through the real intake, on one clock, and judges what they say."""

import datetime as dt
import gzip
import re
from dataclasses import dataclass, field
from pathlib import Path

from sparkd.engines.lines import read_line
from sparkd.engines.model import LineFact
from sparkd.intake.pump import Intake
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.signals.judge import judge
from sparkd.signals.match import Places
from sparkd.signals.model import Diagnosis, Evidence, Signal, UnitExit
from sparkd.words import Phase, UnitName

DATA = Path(__file__).parent / "data"
CATALOGUE = packaged_catalogue()
TWO_NODES = Places(
    addresses={"10.77.0.1": "spark-a", "10.77.0.2": "spark-b"},
    ranks={0: "spark-a", 1: "spark-b"},
    head="spark-a",
)
ONE_HOST = Places(addresses={"192.0.2.2": "spark-a"}, ranks={0: "spark-a", 1: "spark-a"}, head="spark-a")
_STARTED = re.compile(r"# started (\S+)")
_OFFSET = re.compile(r"\[ *(\d+\.\d+)\] ?")
_EXIT = re.compile(r"# EXIT CODE (\d+)")
_RAY_TIME = re.compile(r"\[(2026-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) ")
_VLLM_TIME = re.compile(r"\b(11-30 \d\d:\d\d:\d\d) \[")


@dataclass
class Log:
    """One recorded log: its file, who read it, and as what."""

    file: str
    node: str = "spark-a"
    source: str = "serve log"
    unit: UnitName = UnitName.SERVE


@dataclass
class Heard:
    """What reading gave."""

    signals: list[Signal] = field(default_factory=list)
    exits: list[UnitExit] = field(default_factory=list)
    phases: list[tuple[float, Phase]] = field(default_factory=list)
    kv_cache_bytes: int | None = None


def seconds(text: str) -> float:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp()


def text_of(file: str) -> str:
    return gzip.decompress((DATA / f"{file}.gz").read_bytes()).decode("utf-8", "replace")


def hear(logs: list[Log], places: Places = TWO_NODES) -> Heard:
    """Read *logs* line by line, each with its own intake; times are epoch seconds of the run."""
    heard = Heard()
    for log in logs:
        _hear(log, places, heard)
    heard.signals.sort(key=lambda s: s.at_s)
    heard.phases.sort(key=lambda p: p[0])
    return heard


def _hear(log: Log, places: Places, heard: Heard) -> None:
    facts: list[LineFact] = []

    def note(line: str) -> LineFact | None:
        fact = read_line(line)
        if fact is not None:
            facts.append(fact)
        return fact

    intake = Intake(log.node, CATALOGUE, note, places)
    at_s, started_s = 0.0, 0.0
    for raw in text_of(log.file).split("\n"):
        begun = _STARTED.search(raw)
        started_s = seconds(begun[1][:19]) if begun else started_s
        line, at_s = _timed(raw, started_s, at_s)
        ended = _EXIT.search(line)
        if ended:
            line = line[: ended.start()]
            heard.exits.append(UnitExit(log.node, UnitName.SERVE, 1, at_s, code=int(ended[1])))
        heard.signals += intake.tick(at_s).signals
        heard.signals += intake.feed(log.source, log.unit, 1, line.encode() + b"\n", at_s).signals
        for fact in facts:
            phase = Phase.SERVING if fact.port_ready else fact.phase
            heard.phases += [(at_s, phase)] if phase is not None else []
            heard.kv_cache_bytes = fact.kv_cache_bytes or heard.kv_cache_bytes
        facts.clear()
    heard.signals += intake.end(log.source, 1, at_s).signals


def _timed(raw: str, started_s: float, last_s: float) -> tuple[str, float]:
    offset = _OFFSET.match(raw)
    if offset:
        return raw[offset.end() :], started_s + float(offset[1])
    ray = _RAY_TIME.search(raw)
    if ray:
        return raw, seconds(ray[1]) + int(ray[2]) / 1000
    vllm = _VLLM_TIME.search(raw)
    return raw, seconds(f"2026-{vllm[1]}") if vllm else last_s


def evidence(heard: Heard, *extra: Signal) -> Evidence:
    """What a coordinator would judge: the phase is the last before the first fatal signal or end."""
    signals = (*heard.signals, *extra)
    ends = [s.at_s for s in signals if s.fatal] + [e.at_s for e in heard.exits]
    before = [phase for at_s, phase in heard.phases if at_s <= min(ends, default=float("inf"))]
    phase = Phase.SERVING if Phase.SERVING in before else (before[-1] if before else None)
    return Evidence(
        signals=signals,
        exits=tuple(heard.exits),
        phase=phase,
        nodes=("spark-a", "spark-b"),
        head="spark-a",
        kv_cache_bytes=heard.kv_cache_bytes,
    )


def diagnose(logs: list[Log], *extra: Signal, places: Places = TWO_NODES) -> Diagnosis:
    return judge(evidence(hear(logs, places), *extra))
