"""`sparkctl plan` with what earlier starts have measured, asked of the daemon."""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from export import states
from sizing import checkpoints
from sparkd.adapters import machine
from sparkd.cli import client, plan, plan_learned, sparkctl
from sparkd.cli.client import Client, ClientError, NobodyListensError, NotAllowedError
from sparkd.config.asked import Asked, read_asked
from sparkd.core.records import InContext, Kept, KeptChanged
from sparkd.engines.digest import context_of
from sparkd.export.status import status_view
from sparkd.sizing.model import Learned
from sparkd.store.disk import DiskStore
from sparkd.store.lock import StateLock
from sparkd.words import GIB, Phase, Settings

LEARNED = Learned(-GIB, ((Phase.LOADING_WEIGHTS, GIB), (Phase.SERVING, -2 * GIB)), GIB, 2 * GIB)
SILENT = NobodyListensError("no sparkd runs here: /run/x does not exist\n  start it")


def state_of(learned: Learned | None):
    state = states.serving()
    return replace(state, coordinator=replace(state.coordinator, learned=learned))


@pytest.fixture
def answers(monkeypatch):
    """Let the daemon say what a state makes of its status; an error in its place is raised."""

    def give(said):
        def status(client: Client) -> dict:
            if isinstance(said, ClientError):
                raise said
            return said if isinstance(said, dict) else status_view(said, states.POLICY, states.NOW)

        monkeypatch.setattr(plan_learned, "status_of", status)

    return give


def told(**options) -> argparse.Namespace:
    given = {"model": None, "config": None, "node_memory": None, "set": [], "socket": None, "demo": False}
    return argparse.Namespace(**{**given, "url": None, **options})


def here(state_dir: Path = Path("/nonexistent")) -> Asked:
    """Return what the configuration of this node says."""
    return replace(read_asked(None, {}), state_dir=str(state_dir))


def test_what_the_daemon_measured_is_taken_over_as_it_is(answers) -> None:
    answers(state_of(LEARNED))
    assert plan_learned.learned_of(told(), here()) == (LEARNED, plan_learned.USED)
    settings = ["gpu_memory_utilization=0.8", "settings.kv_cache_bytes=4GiB"]
    assert plan_learned.learned_of(told(set=settings), here()) == (LEARNED, plan_learned.USED)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (state_of(None), "no start of this model has been measured yet"),
        ({"learned_peaks": None, "role": "worker"}, "ask on the head, which has them"),
        ({"learned_peaks": {"by_phase": {"no phase": 1}}, "role": "head"}, "are of different versions"),
        (SILENT, "/run/x does not exist, and /nonexistent has none of this model"),
    ],
)
def test_where_nothing_can_be_had_it_is_said_why(said, why, answers) -> None:
    answers(said)
    learned, text = plan_learned.learned_of(told(), here())
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
    assert plan_learned.learned_of(told(**other), here()) == (None, "")


def test_a_daemon_that_is_named_is_told_why_it_is_not_asked(answers) -> None:
    answers(state_of(LEARNED))
    learned, text = plan_learned.learned_of(told(socket="/run/x", model="/srv/another"), here())
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


@contextmanager
def kept_in(folder: Path, kept: Kept, *, ended: bool = True) -> Iterator[None]:
    """Let a daemon keep something in its state directory, and end before it is asked, or not."""
    store = DiskStore(folder, asked=Settings(), wall=time.time)
    with asyncio.Runner() as runner:
        store.load()
        runner.run(store.append((KeptChanged(kept),)))
        if ended:
            runner.run(store.close())
        yield
        if not ended:
            runner.run(store.close())


def context() -> str:
    asked = here()
    return context_of(asked.engine, asked.nodes, machine.kernel_release(), machine.driver_version())


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    return {entry.name: (entry.stat().st_size, entry.stat().st_mtime_ns) for entry in os.scandir(folder)}


@pytest.mark.parametrize("ended", [True, False])
def test_with_no_daemon_what_the_last_one_kept_is_read(ended, answers, tmp_path) -> None:
    """However it ended; nobody's lock stands in the way, and no file is made or changed."""
    answers(SILENT)
    with kept_in(tmp_path, Kept(context=context(), learned=LEARNED), ended=ended):
        lock = StateLock(tmp_path)
        before = files_of(tmp_path)
        assert plan_learned.learned_of(told(), here(tmp_path)) == (LEARNED, plan_learned.KEPT)
        assert files_of(tmp_path) == before
        assert ("history.sqlite-wal" in before) is not ended
        lock.release()


def test_what_was_kept_with_another_context_counts_where_it_is_this_one(answers, tmp_path) -> None:
    answers(SILENT)
    before = InContext(context=context(), learned=LEARNED)
    with kept_in(tmp_path, Kept(context="another/driver", learned=Learned(7), others=(before,))):
        assert plan_learned.learned_of(told(), here(tmp_path))[0] == LEARNED


def test_what_was_kept_of_another_model_is_not_used(answers, tmp_path) -> None:
    answers(SILENT)
    with kept_in(tmp_path, Kept(context="another/driver", learned=LEARNED)):
        learned, text = plan_learned.learned_of(told(), here(tmp_path))
    assert learned is None and "has none of this model, engine, driver, kernel and nodes" in text


def test_a_store_that_cannot_be_read_is_told(answers, tmp_path) -> None:
    answers(SILENT)
    (tmp_path / "history.sqlite").write_bytes(b"no database" * 100)
    learned, text = plan_learned.learned_of(told(), here(tmp_path))
    assert (
        learned is None and f"{tmp_path}/history.sqlite cannot be read: file is not a database (if it" in text
    )
    assert "systemctl start sparkd moves it aside" in text


def test_a_state_directory_that_may_not_be_read_says_who_may(answers, tmp_path, monkeypatch) -> None:
    answers(SILENT)

    def refuse(source, _target):
        raise PermissionError(errno.EACCES, "Permission denied", str(source))

    monkeypatch.setattr(shutil, "copyfile", refuse)
    _, text = plan_learned.learned_of(told(), here(tmp_path))
    assert text.endswith("/history.sqlite cannot be read: Permission denied (root may: sudo sparkctl plan)")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            NotAllowedError("you may not talk to sparkd: /run/x belongs to its group\n  join it: …"),
            "you may not talk to sparkd: /run/x belongs to its group (root may: sudo sparkctl plan)",
        ),
        (
            ClientError("sparkd did not answer within 10 s on /run/x\n  look at its log: journalctl"),
            "sparkd did not answer within 10 s on /run/x; look at its log: journalctl",
        ),
        (ClientError("sparkd answered 500: x"), "sparkd answered 500: x"),
    ],
)
def test_the_store_of_a_daemon_that_runs_is_left_alone(error, said, answers, tmp_path) -> None:
    """It is written to: its file and its log would not be copied as of one moment."""
    answers(error)
    with kept_in(tmp_path, Kept(context=context(), learned=LEARNED)):
        found = plan_learned.learned_of(told(), here(tmp_path))
    assert found == (None, f"measured peaks are not used: {said}")


def test_the_daemon_is_asked_where_the_configuration_has_it_listen(tmp_path) -> None:
    """At a socket of its own it runs all the same."""
    with (
        kept_in(tmp_path, Kept(context=context(), learned=LEARNED)),
        listening(tmp_path / "own.sock") as path,
    ):
        _, text = plan_learned.learned_of(told(), replace(here(tmp_path), socket=str(path)))
    assert f"cannot ask sparkd on {path}" in text
    environ = {"SPARKD_PATHS__RUN_DIR": "/run/own"}
    assert read_asked(None, environ).socket == "/run/own/sparkd.sock"


@contextmanager
def listening(path: Path) -> Iterator[Path]:
    """Let somebody listen who hangs up on everybody."""

    def hang_up() -> None:
        with closing(server.accept()[0]) as caller:
            caller.recv(1 << 16)

    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as server:
        server.bind(str(path))
        server.listen()
        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        yield path
        thread.join(20)


def test_who_does_not_listen_is_told_from_who_does_not_answer(tmp_path, monkeypatch) -> None:
    def error_of(path: Path) -> type[ClientError]:
        with pytest.raises(ClientError) as raised:
            Client(path=path).get("/status")
        return raised.type

    assert error_of(tmp_path / "nowhere") is NobodyListensError
    with listening(tmp_path / "sock") as path:
        assert error_of(path) is ClientError
    assert error_of(path) is NobodyListensError, "its socket outlives a daemon that was killed"

    def refuse(_connection) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(client._UnixConnection, "connect", refuse)
    assert error_of(path) is NotAllowedError


@pytest.mark.parametrize("named", [{"socket": "/run/y"}, {"url": "http://192.0.2.1:1"}])
def test_a_named_daemon_that_is_silent_may_be_another_nodes(named, answers, tmp_path) -> None:
    answers(SILENT)
    with kept_in(tmp_path, Kept(context=context(), learned=LEARNED)):
        found = plan_learned.learned_of(told(**named), here(tmp_path))
    assert found == (None, "measured peaks are not used: no sparkd runs here: /run/x does not exist")
