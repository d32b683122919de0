"""Scenarios as text: what is done to a cluster, and what it says and orders.

Each file of `transcripts/` is read line by line: `> …` does something, the lines under it are what the nodes
recorded and ordered since. Rewrite the files after a change that is meant, and read the difference:

    SPARKD_REWRITE=1 pytest tests/sim/test_transcripts.py

What can be done: `cluster KEY=VALUE …` (first; keys of the policy) · `run SECONDS` · `until PHASE` ·
`signal NODE CAUSE [KEY=VALUE …]` · `kill NODE UNIT SIGNAL|code=N` · `ask VERB` · `broker up|down` ·
`restart NODE [wiped]` · `silence NODE` · `free NODE GIB`.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sim.world import GIB, World
from sparkd.core import commands as co
from sparkd.core import events as ev
from sparkd.core import records as re
from sparkd.words import Phase, UnitName

FILES = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
LIMIT_S = 3 * 3600.0


class Scenario:
    """One file's cluster, and how far its story has been told."""

    def __init__(self) -> None:
        self.world = World()
        self.said: list[str] = []
        self.told: dict[str, int] = {}

    def do(self, line: str) -> list[str]:
        """Do one line; return what was recorded and ordered."""
        verb, *words = line.split()
        getattr(self, f"_{verb}")(*words)
        return self._news()

    def _news(self) -> list[str]:
        news, self.said = self.said, []
        return news

    def _cluster(self, *words: str) -> None:
        self.world = World(**dict(map(_pair, words)))
        self._listen()

    def _listen(self) -> None:
        world = self.world
        for kind in (co.StartUnit, co.StopUnit, co.PublishIntent):
            name = f"_do_{kind.__name__}"
            setattr(world, name, self._heard(getattr(world, name)))
        tell = world.tell

        def listened(node, event) -> None:
            before = len(world.nodes[node.name].records)
            tell(node, event)
            for record in world.nodes[node.name].records[before:]:
                text = line_of(record)
                if text:
                    self._say(node.name, text)

        world.tell = listened

    def _heard(self, act: Callable) -> Callable:
        def heard(node, command) -> None:
            text = order_of(command)
            self._say(node.name, f"orders {text}")
            act(node, command)

        return heard

    def _say(self, node: str, text: str) -> None:
        self.said.append(f"{self.world.now:9.2f}  {node}  {text}")

    def _run(self, seconds: str) -> None:
        self.world.run_for(float(seconds))

    def _until(self, phase: str) -> None:
        self.world.run_until(lambda: self.world.phase is Phase(phase), LIMIT_S)

    def _signal(self, node: str, cause: str, *words: str) -> None:
        self.world.signal(node, cause, **dict(map(_pair, words)))

    def _kill(self, node: str, unit: str, how: str) -> None:
        code = int(how.removeprefix("code=")) if how.startswith("code=") else None
        self.world.kill(node, UnitName(unit), code, None if code is not None else int(how))

    def _ask(self, verb: str) -> None:
        self.world.tell(self.world.head, ev.OperatorAsked(ev.Verb(verb)))

    def _broker(self, what: str) -> None:
        self.world.set_broker(up=what == "up")

    def _restart(self, node: str, *how: str) -> None:
        self.world.restart_daemon(node, remember=not how)

    def _silence(self, node: str) -> None:
        self.world.nodes[node].up = False

    def _free(self, node: str, gib: str) -> None:
        self.world.nodes[node].available_bytes = int(float(gib) * GIB)


def _pair(word: str) -> tuple[str, object]:
    name, _, value = word.partition("=")
    return name, ast.literal_eval(value)


def order_of(command: co.Command) -> str:
    """Return a command in words."""
    match command:
        case co.StartUnit(unit=unit, stamp=stamp, settings=settings):
            kv = "" if settings.kv_cache_bytes is None else f" kv {settings.kv_cache_bytes / GIB:.1f} GiB"
            return f"start {unit} of {stamp.epoch}/{stamp.generation}{kv}"
        case co.StopUnit(unit=unit, generation=generation, grace_s=grace_s):
            return f"stop {unit} of {generation} within {grace_s:g} s"
        case co.PublishIntent(intent=intent):
            wanted = " ".join(f"{node}:{'+'.join(units) or '-'}" for node, units in intent.wanted)
            return f"intent {intent.seq} of {intent.stamp.epoch}/{intent.stamp.generation}: {wanted}"
    raise AssertionError(command)


def line_of(record: re.Record) -> str:
    """Return a record in words, empty where it is only for the disk."""
    match record:
        case re.PhaseChanged(before=before, after=after, reason=reason):
            return f"{before} -> {after}: {reason}"
        case re.WaitingFor(reasons=reasons):
            return f"waits for {'; '.join(reasons) or 'nothing'}"
        case re.UnitChanged(unit=unit, generation=generation, state=state, detail=detail):
            return f"{unit} of {generation} {state}{f' ({detail})' if detail else ''}"
        case re.IncidentOpened(incident=number, reason=reason):
            return f"incident {number} opened: {reason}"
        case re.Remedied(diagnosis=diagnosis, action=action, explanation=explanation, backoff_s=backoff_s):
            return (
                f"judged {diagnosis.cause} on {diagnosis.node}: {action} in {backoff_s:.1f} s: {explanation}"
            )
        case re.IncidentClosed(incident=number, outcome=outcome, relaunches=count, needs=needs):
            return (
                f"incident {number} {outcome} with {count} relaunches{f', needs: {needs}' if needs else ''}"
            )
        case re.MessageDropped(kind=kind, reason=reason, sender=sender):
            return f"drops {kind} of {sender}: {reason}"
        case re.PeerChanged(node=node, present=present, reason=reason):
            return f"{node} is {'there' if present else 'not there'}: {reason}"
        case re.SettingsAdopted(reason=reason):
            return f"adopts settings: {reason}"
        case re.InvariantBroken(rule=rule):
            return f"BROKEN: {rule}"
    return ""


def told(text: str) -> Iterator[str]:
    """Tell a transcript anew."""
    scenario = Scenario()
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            yield line
        elif line.startswith("> "):
            yield line
            yield from scenario.do(line.removeprefix("> "))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    written = path.read_text(encoding="utf-8")
    now = "\n".join(told(written)) + "\n"
    if os.environ.get("SPARKD_REWRITE"):
        path.write_text(now, encoding="utf-8")
    assert now == path.read_text(encoding="utf-8")
    assert "BROKEN" not in now


def test_there_are_transcripts() -> None:
    assert len(FILES) >= 10
