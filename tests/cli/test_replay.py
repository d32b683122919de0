"""`sparkctl replay`: a recorded incident's decisions made again."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest

from sim.world import GIB, World, serving
from sparkd.cli import sparkctl
from sparkd.cli.incident_text import show_text
from sparkd.core import remedy
from sparkd.store.disk import DiskStore
from sparkd.words import Phase, UnitName


def lived() -> World:
    """A cluster that recovered from a memory kill during graph capture."""
    world = World()

    def kill(_node, proc, phase) -> None:
        if phase is Phase.CAPTURING_GRAPHS and proc.stamp.generation == 1:
            amounts = {"used_bytes": 113.78 * GIB, "total_bytes": 119.7 * GIB}
            world.signal("spark-a", "ray_oom_kill", threshold_bytes=0.95 * 119.7 * GIB, **amounts)
            world.kill("spark-a", UnitName.SERVE, code=1, signal=None)

    world.on_serve = kill
    world.run_until(serving(world))
    return world


@pytest.fixture
def file(tmp_path):
    """The incident as `sparkctl --json incidents show 1` prints it."""

    async def shown():
        disk = DiskStore(tmp_path, asked=world.head.policy.settings, wall=lambda: 0.0)
        disk.load()
        await disk.append(world.head.records)
        try:
            return await disk.view.incident(1)
        finally:
            await disk.close()

    world = lived()
    path = tmp_path / "incident.json"
    path.write_text(json.dumps(asyncio.run(shown())), encoding="utf-8")
    return path


def test_the_same_code_decides_the_same(file, capsys) -> None:
    assert sparkctl.main(["replay", str(file)]) == 0
    assert capsys.readouterr().out == "generation 1: ray_oom_kill, relaunch: the same as recorded\n"


def test_it_shows_where_todays_code_decides_differently(file, capsys, monkeypatch) -> None:
    def gives_up(diagnosis, facts, policy, now):
        return remedy.Remedy(remedy.Action.ESCALATE, facts.settings, "nothing helps", needs="a person")

    monkeypatch.setattr(remedy, "choose", gives_up)
    assert sparkctl.main(["replay", str(file)]) == 1
    out = capsys.readouterr().out
    assert "generation 1: differs in action, settings" in out
    assert "now       ray_oom_kill · capturing_graphs · spark-a · escalate" in out
    assert "  settings  ray memory threshold 0.98 → 0.95\n" in out


def test_of_settings_alone_that_differ_each_is_shown(file, capsys) -> None:
    document = json.loads(file.read_text())
    after = document["remedies"][0]["settings_after"]
    kept, after["kv_cache_bytes"] = after["kv_cache_bytes"], after["kv_cache_bytes"] - 1
    del after["max_num_seqs"]
    file.write_text(json.dumps(document))
    assert sparkctl.main(["replay", str(file)]) == 1
    out = capsys.readouterr().out
    assert "differs in settings\n" in out
    assert f"  settings  kv cache bytes {kept - 1} → {kept}\n" in out
    assert "  settings  max num seqs unknown → engine default\n" in out


def test_evidence_that_is_changed_changes_the_decision(file, capsys) -> None:
    document = json.loads(file.read_text())
    document["judged"][0]["case"]["evidence"]["signals"][0]["cause"] = "cuda_oom"
    file.write_text(json.dumps(document))
    assert sparkctl.main(["--json", "replay", str(file)]) == 1
    (again,) = json.loads(capsys.readouterr().out)
    assert again["now"]["cause"] == "cuda_oom"
    assert "cause" in again["differing"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no JSON"),
        ("[]", "is no recorded incident"),
        ("{}", "sparkctl --json incidents show N"),
        ('{"judged": [{"case": 1}], "remedies": []}', "understood: judged[0].case: "),
    ],
)
def test_what_is_no_incident_is_refused_with_what_to_do(tmp_path, capsys, text, said) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    assert sparkctl.main(["replay", str(path)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("remedies", [], "remedies: holds no decision of generation 1"),
        ("judged", [None], "judged[0].case: is missing"),
        ("judged.0.case.facts.failures", "many", "judged[0].case.facts.failures: input should be"),
        ("judged.0.policy.head", None, "judged[0].policy.head: input should be"),
        ("remedies.0.diagnosis.cause", 3, "remedies[0].diagnosis.cause: input should be"),
        ("remedies.0", {}, "remedies[0].generation: field required"),
    ],
)
def test_a_field_that_is_missing_or_wrong_is_named(file, capsys, path, value, field) -> None:
    document = place = json.loads(file.read_text())
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in way:
        place = place[part]
    place[last] = value
    file.write_text(json.dumps(document))
    assert sparkctl.main(["replay", str(file)]) == 2
    said = capsys.readouterr().err
    assert field in said
    assert "Make it anew with: sparkctl --json incidents show N > FILE" in said


def test_an_incident_and_a_diagnosis_of_it_quote_the_same_words(file, capsys) -> None:
    long = (
        "EngineCore failed to start. Traceback (most recent call last): "
        'File "/srv/env/lib/vllm/core.py", line 9, in run_engine_core raise ^^^^ RuntimeError: cancelled'
    )
    document = json.loads(file.read_text())
    for signal in document["judged"][-1]["case"]["evidence"]["signals"]:
        signal["quote"] = long
    for quote in document["remedies"][-1]["diagnosis"]["evidence"]:
        quote["text"] = long
    file.write_text(json.dumps(document))
    assert sparkctl.main(["diagnose", str(file)]) == 1
    telling = "EngineCore failed to start. (in run_engine_core, core.py:9) RuntimeError: cancelled"
    assert telling in capsys.readouterr().out
    shown = show_text(document)
    assert telling in shown and "^^^^" not in shown


def test_a_file_that_is_not_there_is_said(tmp_path, capsys) -> None:
    assert sparkctl.main(["replay", str(tmp_path / "none.json")]) == 2
    assert "No such file" in capsys.readouterr().err


RECORDED = sorted((Path(__file__).parents[1] / "sim" / "incidents").glob("*.json"))
"""Incidents of the lab, with the real Ray and vLLM, as `make lab` keeps them in build/lab-incidents-1/."""


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_an_incident_of_the_lab_is_decided_as_it_was(path: Path, capsys) -> None:
    """The file's name is its cause. Where a change decides otherwise on purpose, take the lab's new ones."""
    assert sparkctl.main(["replay", str(path)]) == 0
    assert f": {path.stem}, relaunch: the same as recorded" in capsys.readouterr().out


def test_the_lab_has_left_incidents() -> None:
    assert len(RECORDED) >= 2


def test_a_damaged_incident_ends_without_a_traceback(tmp_path: Path, capsys) -> None:
    path = tmp_path / "incident.json"
    good = RECORDED[0].read_text()
    for remedies in ([None], ["x"], [1]):
        path.write_text(json.dumps({**json.loads(good), "remedies": remedies}))
        assert sparkctl.main(["replay", str(path)]) == 2
    for text in ("[" * 200_000, '{"a":' * 200_000, '{"judged": NaN}', good.replace("0.98", "Infinity")):
        path.write_text(text)
        assert sparkctl.main(["replay", str(path)]) == 2
    path.write_text("\ufeff" + good)
    assert sparkctl.main(["replay", str(path)]) in {0, 1}
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_diagnose_of_an_incident_names_what_the_daemon_named(path: Path, capsys) -> None:
    decided = json.loads(path.read_text(encoding="utf-8"))["remedies"][-1]["diagnosis"]

    assert sparkctl.main(["diagnose", "--json", str(path)]) == 1

    found = json.loads(capsys.readouterr().out)
    assert [found[name] for name in ("cause", "phase", "node")] == [
        decided[name] for name in ("cause", "phase", "node")
    ]


def test_an_incident_may_be_piped_in(capsys, monkeypatch) -> None:
    def ask(given: bytes) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
        status = sparkctl.main(["diagnose", "--json"])
        told = capsys.readouterr()
        return status, told.out, told.err

    whole = RECORDED[0].read_bytes()
    status, out, _ = ask(whole)
    assert (status, json.loads(out)["cause"]) == (1, json.loads(whole)["remedies"][-1]["diagnosis"]["cause"])
    for other in (whole[: len(whole) // 2], b'{"incident": 1, "judged": []}'):
        status, out, err = ask(other)
        assert (status, out) == (2, "")
        assert "begins as a recorded incident and is none" in err


def test_the_evidence_that_was_kept_is_the_evidence_that_was_judged(file, capsys) -> None:
    """A file that the daemon of today wrote: with each node's memory, and every signal with its verdict."""
    evidence = json.loads(file.read_text(encoding="utf-8"))["judged"][-1]["case"]["evidence"]
    assert {curve["node"] for curve in evidence["memory"]} == {"spark-a", "spark-b"}
    assert all(curve["total_bytes"] for curve in evidence["memory"])

    assert sparkctl.main(["diagnose", "--explain", str(file)]) == 1

    assert capsys.readouterr().out.startswith("ray_oom_kill · ")


def test_an_incident_is_given_alone_and_whole(file, tmp_path, capsys) -> None:
    log = tmp_path / "serve.log"
    log.write_text("INFO:     Application startup complete.\n", encoding="utf-8")
    assert sparkctl.main(["diagnose", str(file), str(log)]) == 2
    assert "give it alone" in capsys.readouterr().err

    document = json.loads(file.read_text(encoding="utf-8"))
    document["judged"][-1]["case"]["evidence"]["exits"] = 7
    file.write_text(json.dumps(document), encoding="utf-8")
    assert sparkctl.main(["diagnose", str(file)]) == 2
    assert "incidents show N" in capsys.readouterr().err
