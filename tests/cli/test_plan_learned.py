"""`sparkctl plan` with what earlier starts have measured, asked of the daemon."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

import pytest

from export import states
from sizing import checkpoints
from sparkd.cli import plan, plan_learned, sparkctl
from sparkd.cli.client import Client, ClientError
from sparkd.export.status import status_view
from sparkd.sizing.model import Learned
from sparkd.words import GIB, Phase

LEARNED = Learned(-GIB, ((Phase.LOADING_WEIGHTS, GIB), (Phase.SERVING, -2 * GIB)))


def state_of(learned: Learned | None):
    state = states.serving()
    return replace(state, coordinator=replace(state.coordinator, learned=learned))


@pytest.fixture
def answers(monkeypatch):
    """Let the daemon say what a state makes of its status; an error in its place is raised."""

    def give(said):
        def told(client: Client) -> dict:
            if isinstance(said, ClientError):
                raise said
            return said if isinstance(said, dict) else status_view(said, states.POLICY, states.NOW)

        monkeypatch.setattr(plan_learned, "status_of", told)

    return give


def asked(**options) -> argparse.Namespace:
    given = {"model": None, "config": None, "node_memory": None, "set": [], "socket": None, "demo": False}
    return argparse.Namespace(**{**given, "url": None, **options})


def test_what_the_daemon_measured_is_taken_over_as_it_is(answers) -> None:
    answers(state_of(LEARNED))
    assert plan_learned.learned_of(asked()) == (LEARNED, plan_learned.USED)
    settings = ["gpu_memory_utilization=0.8", "settings.kv_cache_bytes=4GiB"]
    assert plan_learned.learned_of(asked(set=settings)) == (LEARNED, plan_learned.USED)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (state_of(None), "no start of this model has been measured yet"),
        ({"learned_peaks": None, "role": "worker"}, "ask on the head, which has them"),
        ({"learned_peaks": {"by_phase": {"no phase": 1}}, "role": "head"}, "are of different versions"),
        (ClientError("no sparkd runs here: /run/x does not exist\n  start it"), "/run/x does not exist"),
    ],
)
def test_where_nothing_can_be_had_it_is_said_why(said, why, answers) -> None:
    answers(said)
    learned, text = plan_learned.learned_of(asked())
    assert learned is None
    assert text.startswith("measured peaks are not used: ") and why in text and "\n" not in text


@pytest.mark.parametrize(
    "other",
    [
        {"model": "/srv/another"},
        {"config": "other.toml"},
        {"node_memory": "80GiB"},
        {"set": ["engine.tensor_parallel=1"]},
    ],
)
def test_another_plan_than_the_daemons_is_not_corrected(other, answers) -> None:
    answers(state_of(LEARNED))
    assert plan_learned.learned_of(asked(**other)) == (None, "")


def test_a_daemon_that_is_named_is_told_why_it_is_not_asked(answers) -> None:
    answers(state_of(LEARNED))
    learned, text = plan_learned.learned_of(asked(socket="/run/x", model="/srv/another"))
    assert (learned, text) == (
        None,
        "measured peaks are not used: MODEL_DIR is not the model that is configured",
    )


def test_the_plan_says_which_it_used(answers, monkeypatch, capsys, tmp_path) -> None:
    model = checkpoints.write(tmp_path / "model", *checkpoints.llama())
    nodes = "".join(
        f'[[node]]\nname = "n{n}"\nrole = "{role}"\naddress = "10.0.0.{n}"\ninterface = "cx0"\n'
        for n, role in ((1, "head"), (2, "worker"))
    )
    config = tmp_path / "sparkd.toml"
    config.write_text(f'[cluster]\nname = "c"\n{nodes}[engine]\nmodel = "{model}"\n')
    monkeypatch.setattr(plan, "CONFIG", str(config))

    def planned() -> dict:
        sparkctl.main(["plan", "--json"])
        return json.loads(capsys.readouterr().out)

    answers(state_of(None))
    plain = planned()
    answers(state_of(LEARNED))
    corrected = planned()

    assert plain["learned"].endswith("no start of this model has been measured yet")
    assert corrected["learned"] == plan_learned.USED
    assert [part["source"] for part in corrected["phases"][-1]["parts"]].count("measured") == 2
    sparkctl.main(["plan"])
    assert f"note: {plan_learned.USED}" in capsys.readouterr().out
