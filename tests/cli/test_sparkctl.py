"""`sparkctl` against a real operator socket: texts, exit status, and what to type when nobody answers."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from export import states
from sparkd.api import http, operator
from sparkd.cli import client, sparkctl
from sparkd.cli.layout import clock_text, safe
from sparkd.export.explain import explain
from sparkd.export.page import page
from sparkd.export.status import About, ready, status_view
from sparkd.store.disk import DiskStore
from store.lives import ASKED, life, opened

WALL_S = 1_700_000_000.0


class Daemon:
    """An operator socket and a page in a thread of their own, in front of a real history."""

    def __init__(self, folder):
        self.folder = folder
        self.socket = folder / "sparkd.sock"
        self.state = states.serving()
        self.last = None
        self.asked = []
        self.answer = operator.Answer(True, "stopping the engine on every node")
        self.failed = []
        self.url = ""
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    def start(self):
        self._thread.start()
        assert self._ready.wait(10)

    def stop(self):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        self._loop.close()

    def status(self):
        about = About(
            cluster="qwen-pair",
            model="Qwen3.5-122B-A10B-FP8",
            parallel="tp 2",
            engine_version="0.32.0",
            api_url="http://192.168.200.12:8000",
            last_incident=self.last,
            learned={"reason": "KV cache 49.1 → 44.6 GiB", "age_s": 172_800.0},
        )
        return status_view(self.state, states.POLICY, states.NOW, about)

    def ask(self, verb, by):
        self.asked.append((verb, by))
        return self.answer

    async def _serve(self):
        disk = DiskStore(self.folder, asked=ASKED, wall=lambda: WALL_S)
        disk.load()
        for records in life():
            await disk.append(records)
        await disk.append([opened(8)])
        self.last = await disk.view.last_closed()
        socket_app = operator.make_app(
            operator.OperatorViews(
                self.status,
                lambda: explain(self.state, states.POLICY, states.NOW),
                disk.view.incidents,
                disk.view.incident,
                self.ask,
                self.failed.append,
            )
        )
        page_app = http.make_app(
            http.Views(
                lambda: b"",
                self.status,
                lambda: page(self.status()),
                lambda: ready(self.state),
                lambda: 0.0,
                self.failed.append,
            )
        )
        runners = [await operator.listen(socket_app, self.socket), await http.listen(page_app, port=0)]
        self.url = f"http://127.0.0.1:{runners[1].addresses[0][1]}"
        self._ready.set()
        await self._stop.wait()
        for runner in runners:
            await runner.cleanup()
        await disk.close()


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    """A daemon that serves, with one incident behind it and one open."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    made = Daemon(tmp_path)
    made.start()
    yield made
    made.stop()
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def ctl(daemon, capsys):
    """Run sparkctl on the daemon's socket; return (exit status, stdout, stderr)."""

    def run(*arguments):
        status = sparkctl.main(["--socket", str(daemon.socket), *arguments])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def squeezed(line):
    return " ".join(line.split())


def test_status_while_serving(ctl):
    status, out, _ = ctl("status")

    first, model, empty, head, spark_a, spark_b, _, settings, last, needs = out.splitlines()
    assert status == 0
    assert first.startswith("cluster qwen-pair           SERVING  since ")
    assert first.endswith("(6 h 12 min)   generation 14")
    assert model == (
        "model   Qwen3.5-122B-A10B-FP8  tp 2 · ray · vllm 0.32.0   http://192.168.200.12:8000  "
        "27.1 tok/s · 3 running · 0 waiting"
    )
    assert empty == ""
    assert squeezed(head) == "node role phase memory available floor pressure engine peer broker"
    assert squeezed(spark_a) == "spark-a head serving 6.2 of 119.7 GiB unknown 0.0 % ray ✓ serve ✓ - ✓"
    assert squeezed(spark_b) == "spark-b worker serving 7.6 of 119.7 GiB unknown 0.0 % ray ✓ ✓ ? ✓"
    assert settings == (
        "settings  KV cache 44.6 GiB (asked utilisation 0.90) · ray monitor off"
        "     learned 2 d ago, sparkctl settings"
    )
    assert last == (
        "last      14 Nov 22:13 ray_oom_kill on spark-a during capturing graphs → recovered in 14 min 31 s "
        "with 1 relaunch      sparkctl incidents show 7"
    )
    assert needs == "needs you nothing"


def test_status_while_loading(ctl, daemon):
    daemon.state = states.loading()

    status, out, _ = ctl("status")

    assert status == 1
    assert "LOADING WEIGHTS  since" in out
    assert "now     ████░░░░░░░░░░░░░░░░ loading weights 21 % · 8 of 39 · 18 s each · about 9 min left" in out


def test_status_while_backing_off(ctl, daemon):
    daemon.state = states.backing_off()

    out = ctl("status")[1]

    assert "incident 7, open for 4 s: ray_oom_kill: spark-a: Ray's memory monitor killed" in out
    assert "relaunch in 8 s: KV cache 49.1 → 44.6 GiB" in out


def test_status_when_escalated_says_so_first_and_what_to_do_last(ctl, daemon):
    daemon.state = states.escalated()

    status, out, _ = ctl("status")

    assert status == 1
    assert "ESCALATED" in out.splitlines()[0]
    assert out.splitlines()[-1] == "needs you reboot spark-b, then sparkctl resume"


def test_status_while_waiting(ctl, daemon):
    daemon.state = states.waiting()

    out = ctl("status")[1]

    assert "now     waiting: spark-b: its sparkd is not heard" in out


def test_a_worker_points_to_the_head(ctl, daemon):
    daemon.state = states.worker()

    status, out, _ = ctl("status")

    assert status == 1
    assert out.splitlines()[-1] == "needs you unknown here: ask on the head, spark-a"


def test_json_is_the_document_before_and_after_the_command(ctl, daemon):
    assert json.loads(ctl("status", "--json")[1]) == json.loads(json.dumps(daemon.status()))
    assert json.loads(ctl("--json", "status")[1])["phase"] == "serving"
    assert json.loads(ctl("incidents", "--json")[1])[0]["incident"] == 8
    assert json.loads(ctl("incidents", "show", "7", "--json")[1])["outcome"] == "recovered"


def test_settings(ctl):
    out = ctl("settings")[1]

    assert "kv_cache_bytes          44.6 GiB" in out
    assert "ray_memory_threshold    off" in out
    assert "learned   2 d ago: KV cache 49.1 → 44.6 GiB" in out


def test_incidents(ctl):
    status, out, _ = ctl("incidents")

    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == ["incident", "8", "7"]
    assert "not over" in out.splitlines()[1]
    assert ctl("incidents", "list")[1] == out


def test_incidents_show(ctl):
    out = ctl("incidents", "show", "7")[1]

    assert out == (
        "incident 7    ray_oom_kill · capturing graphs · spark-a      22:13:20 → 22:13:20  "
        "recovered (14 min 31 s: fence ordered after 0 s, decided after 1.9 s, emptied after 2.1 s, "
        "fenced after 2 s, launched after 10 s, serving after 14 min 15 s)\n"
        "\n"
        "Why    spark-a: Ray's memory monitor killed worker rank 0 during CUDA graph capture "
        "at 113.78 of 119.70 GiB (95.05 %)\n"
        "       confidence 0.97\n"
        "Proof  spark-a raylet.out  03:26:09.871  113.78GB used / 119.70GB limit\n"
        "       spark-b serve log  03:26:10.4  RayWorkerProc rank=[0] died  (cascade)\n"
        "Did    fenced generation 13 on every node, empty after 2.1 s\n"
        "       · ray memory threshold 0.95 → off\n"
        "       · kv cache bytes engine default → 44.6 GiB\n"
        "       · relaunch: Ray monitor off, the guard watches instead; KV cache 49.1 → 44.6 GiB\n"
        "       · waited 10 s before it\n"
        "Then   generation 14 serving, verified by a generation (412 ms)\n"
        "More   docs/runbook.md: ray_oom_kill\n"
    )


def test_an_incident_that_is_not_over(ctl):
    out = ctl("incidents", "show", "8")[1]

    assert "Why    spark-a: ray_kill_details" in out
    assert "Then   not over: sparkctl status" in out


def test_an_incident_that_is_not_there(ctl):
    status, _, err = ctl("incidents", "show", "99")

    assert status == 1
    assert err == "sparkctl: there is no incident 99; sparkctl incidents lists them\n"


@pytest.mark.parametrize("verb", ["start", "stop", "pause", "resume"])
def test_verbs_reach_the_daemon_with_who_asked(ctl, daemon, verb, monkeypatch):
    monkeypatch.setenv("SUDO_USER", "ada")

    status, out, _ = ctl(verb)

    assert (status, out) == (0, "stopping the engine on every node\n")
    assert daemon.asked == [(verb, f"ada (uid {os.getuid()})")]


def test_a_verb_that_is_refused(ctl, daemon):
    daemon.answer = operator.Answer(False, "this node does not coordinate: ask on the head, spark-a")

    assert ctl("stop")[:2] == (1, "this node does not coordinate: ask on the head, spark-a\n")


@pytest.mark.parametrize("body", [{"verb": "shutdown"}, {"verb": "dance"}, {}, [], "x"])
def test_what_is_no_verb_is_refused_and_does_nothing(daemon, body):
    reply = client.Client(path=daemon.socket).post("/verb", body)

    assert reply.status == 400
    assert "start, stop, pause, resume" in reply.error
    assert daemon.asked == []
    assert daemon.failed == []


@pytest.mark.parametrize("limit", ["0", "x", "501", "-1"])
def test_a_limit_out_of_bounds_is_refused(daemon, limit):
    assert client.Client(path=daemon.socket).get(f"/incidents?limit={limit}").status == 400


def test_the_socket_is_for_owner_and_group_alone(daemon):
    assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o660


def test_status_by_url_but_nothing_else(daemon, capsys):
    for command in ("status", "settings", "memory"):
        assert sparkctl.main(["--url", daemon.url, command]) == 0
    assert sparkctl.main(["--url", daemon.url, "stop"]) == 2
    assert "run sparkctl on the node itself" in capsys.readouterr().err
    assert daemon.asked == []


def refused(folder):
    path = folder / "left.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    return path


def test_no_daemon_says_what_to_type(tmp_path, capsys, monkeypatch):
    assert sparkctl.main(["--socket", str(tmp_path / "none"), "status"]) == 2
    assert "sudo systemctl start sparkd (its log" in capsys.readouterr().err
    assert sparkctl.main(["--socket", str(refused(tmp_path)), "status"]) == 2
    assert "does not run any more" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(client, "DEMO_SOCKET", Path("build/nowhere.sock"))
    assert sparkctl.main(["--demo", "status"]) == 2
    assert "make demo" in capsys.readouterr().err


def test_the_demo_is_found_below_the_current_directory(tmp_path, monkeypatch):
    path = tmp_path / client.DEMO_SOCKET
    path.parent.mkdir(parents=True)
    path.touch()
    monkeypatch.chdir(tmp_path)

    assert client.demo_socket() == path


@pytest.mark.parametrize("url", ["ftp://x", "nothing", "http://[", "http://a:b"])
def test_a_url_that_is_none(url, capsys):
    assert sparkctl.main(["--url", url, "status"]) == 2
    assert "--url" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["dance"], ["incidents", "show"], ["incidents", "show", "x"]])
def test_wrong_usage_is_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        sparkctl.main(arguments)

    assert ended.value.code == 2
    assert "usage: sparkctl" in capsys.readouterr().err


def test_a_stale_socket_is_replaced_and_a_long_path_is_told(tmp_path):
    async def main():
        app = operator.make_app(operator.OperatorViews(dict, dict, None, None, None, None))
        runner = await operator.listen(app, refused(tmp_path))
        await runner.cleanup()
        with pytest.raises(OSError, match="longer than 107 bytes"):
            await operator.listen(app, tmp_path / ("x" * 108))
        with pytest.raises(OSError, match=r"operator socket .*No such file"):
            await operator.listen(app, Path("/nonexistent/sparkd.sock"))

    asyncio.run(main())


def test_a_terminal_is_safe_from_what_programs_printed():
    assert safe("a\x1b[2Jb\nc") == "a\N{REPLACEMENT CHARACTER}[2Jb\nc"


def test_a_time_of_another_day_has_its_date():
    assert "Nov" in clock_text(WALL_S, WALL_S + 200_000)
    assert ":" in clock_text(WALL_S, WALL_S)


def test_it_starts_without_what_is_slow_to_import():
    script = "import sys; import sparkd.cli.sparkctl; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()

    slow = {"aiohttp", "asyncio", "pydantic", "prometheus_client", "structlog", "sqlite3", "grpc"}
    assert not slow & set(loaded)


@pytest.mark.parametrize("command", sorted(sparkctl.EXITS))
def test_help_tells_the_exit_status(command, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        sparkctl.main([command, "--help"])
    assert ended.value.code == 0
    assert "Exit status: 0 " in capsys.readouterr().out
