"""`ray`: `--version` and `start`, which stays in the foreground and minds its two children."""

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from standin import faults, knobs, options, proc, texts
from standin.logs import make_session

AUTH_OFF = (
    "Token authentication is disabled for this Ray cluster. Anyone with network access to the cluster "
    "can run arbitrary code and access its data. To enable token authentication, generate a token with "
    "`ray get-auth-token --generate` or set RAY_AUTH_MODE=token. For more information, see "
    "https://docs.ray.io/en/latest/ray-security/token-auth.html"
)
NO_TOKEN = "Token authentication is enabled but no authentication token was found"
JOIN_TRIES = 20
NO_GCS = "TimedOut: Timed out while waiting for GCS to become available."
WAITING = [(5, "rpc_client.h:153", "GCS"), (10, "rpc_client.h:638", "the observability pubsub")]


def main(arguments: list[str]) -> int:
    """The program."""
    if arguments[:1] == ["--version"]:
        sys.stdout.write(f"ray, version {knobs.read().ray_version}\n")
        return 0
    if arguments[:1] != ["start"]:
        what = f"No such command {arguments[0]!r}." if arguments else "Missing command."
        texts.say_error(
            f"Usage: ray [OPTIONS] COMMAND [ARGS]...\nTry 'ray --help' for help.\n\nError: {what}"
        )
        return 2
    try:
        given = options.ray_start(arguments[1:])
    except options.UsageError as error:
        texts.say_error(f"Usage: ray start [OPTIONS]\nTry 'ray start --help' for help.\n\nError: {error}")
        return 2
    if not given.get("head") and not given.get("address"):
        text = "`\x1b[1m--address\x1b[22m` is a required flag unless starting a head node with "
        text += "`\x1b[1m--head\x1b[22m`."
        texts.ray_python("PANIC", "scripts.py:1185", text)
        texts.say_error("Error: `{}` is a required flag unless starting a head node with `{}`.")
        return 1
    return Start(given).run()


class Start:
    """One `ray start`."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self.knobs = knobs.read()
        self.head = bool(given.get("head"))
        self.address = given.get("node_ip_address") or "127.0.0.1"
        self.port = given.get("port") or 6379
        self.gcs = f"{self.address}:{self.port}" if self.head else given["address"]
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.stopping = False

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGINT, self._on_sigterm)
        where = "scripts.py:1043" if self.head else "scripts.py:1234"
        if self.head:
            texts.ray_python("INFO", "usage_lib.py:448", "Usage stats collection is disabled.")
        texts.ray_python("INFO", where, f"\x1b[37mLocal node IP\x1b[39m: \x1b[1m{self.address}\x1b[22m")
        time.sleep(self.knobs.seconds("forming"))
        faults.hold("forming", self.address)
        self._fault("ray_never_joins")
        if self.head and os.environ.get("RAY_AUTH_MODE", "disabled") != "token":
            texts.ray_python("WARNING", "authentication_token_setup.py:73", AUTH_OFF)
        if (failure := self._start()) is not None:
            self._kill_all(signal.SIGKILL)
            texts.say_error(failure)
            return 1
        self._say_started()
        if not self.given.get("block"):
            return 0
        return self._mind()

    def _fault(self, *kinds: str) -> faults.Fault | None:
        fault = faults.due(faults.Place("forming", self.address), set(kinds), self.knobs.generation)
        if fault and fault.kind == "ray_never_joins":
            while not self.stopping:
                signal.pause()
            raise SystemExit(1)
        return fault

    # -- starting

    def _start(self) -> str | None:
        """Start the children; a failure's text or None."""
        from standin import rpc

        if rpc.auth_on() and not rpc.token():
            return _traceback("ray.exceptions.AuthenticationError: " + NO_TOKEN)
        if self.head:
            session = (
                time.strftime("session_%Y-%m-%d_%H-%M-%S") + f"_{time.time_ns() % 1000000:06d}_{os.getpid()}"
            )
            temp_dir = self.given.get("temp_dir") or str(Path(tempfile.gettempdir(), "ray"))
            logs_dir = make_session(temp_dir, session)
            if (failure := self._start_gcs(session, temp_dir, logs_dir)) is not None:
                return failure
        else:
            hello = self._join()
            if isinstance(hello, str):
                return hello
            session, temp_dir = hello["session"], self.given.get("temp_dir") or hello["temp_dir"]
            logs_dir = make_session(temp_dir, session)
        return self._start_raylet(session, temp_dir, logs_dir)

    def _start_gcs(self, session: str, temp_dir: str, logs_dir: str) -> str | None:
        config = {"address": self.gcs, "session": session, "temp_dir": temp_dir, "logs_dir": logs_dir}
        child = proc.spawn("gcs", config, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.children["gcs_server"] = child
        assert child.stdout is not None
        if child.stdout.readline():
            return None
        child.wait()
        text = "RuntimeError: Failed to start GCS.  Last 1 lines of error files:\n"
        text += texts.ray_cpp("gcs_server", "C", "grpc_server.cc:144", f"Failed to bind {self.gcs}")
        return _traceback(
            text + f"\n.Please check {logs_dir}/gcs_server.out for details. Last connection error: None"
        )

    def _start_raylet(self, session: str, temp_dir: str, logs_dir: str) -> str | None:
        wrong = self._fault("ray_wrong_address")
        config = {
            "address": wrong.params["address"] if wrong else self.address,
            "bind": self.address,
            "port": self.given.get("node_manager_port") or 0,
            "gcs": self.gcs,
            "gcs_pid": self.children["gcs_server"].pid if self.head else 0,
            "head": self.head,
            "name": self.given.get("node_name") or "",
            "node_id": secrets.token_hex(28),
            "num_cpus": self.given.get("num_cpus", os.cpu_count()),
            "num_gpus": self.given.get("num_gpus", 0),
            "object_store": self.given.get("object_store_memory") or 2_000_000_000,
            "temp_dir": temp_dir,
            "session_dir": str(Path(temp_dir, session)),
            "logs_dir": logs_dir,
        }
        child = proc.spawn("raylet", config, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.children["raylet"] = child
        self.logs_dir = logs_dir
        assert child.stdout is not None
        if child.stdout.readline():
            return None
        child.wait()
        text = "Exception: The current node timed out during startup. This could happen because the raylet "
        return _traceback(text + "failed to startup or the GCS has become overloaded.")

    def _join(self) -> dict[str, Any] | str:
        """Ask GCS who it is; the real text when it does not answer or refuses."""
        import grpc

        from standin import rpc

        refused = self._fault("ray_join_refused")
        client, detail = rpc.Client(self.gcs), ""
        for _ in range(_join_tries()):
            try:
                hello: dict[str, Any] = self._hello(client, "refuse" if refused else "hello")
            except grpc.RpcError as error:
                bad = refused or error.code() is grpc.StatusCode.UNAUTHENTICATED
                detail = f"Unauthenticated: RPC error: {rpc.BAD_TOKEN}" if bad else NO_GCS
            else:
                return self._same_version(hello)
            self._say_cpp("gcs_client.cc:210", "Failed to get cluster ID from GCS server: " + detail)
            time.sleep(1 / self.knobs.speed)
        kind = "AuthenticationError" if "Unauthenticated" in detail else "GetTimeoutError"
        text = "RuntimeError: Failed to connect to GCS. Last connection error: Traceback (most recent call "
        return _traceback(text + f"last):\nray.exceptions.{kind}: {detail.partition(': ')[2]}\n")

    def _hello(self, client: Any, op: str) -> dict[str, Any]:
        """One try: an answer at once, or 40 seconds of waiting with two lines on the way."""
        import grpc

        began, said = time.monotonic(), 0
        while True:
            try:
                hello: dict[str, Any] = client.call(op, timeout=2.0)
            except grpc.RpcError as error:
                waited = (time.monotonic() - began) * self.knobs.speed
                if error.code() is not grpc.StatusCode.UNAVAILABLE or waited > 40:
                    raise
            else:
                return hello
            for after, where, what in WAITING[said:]:
                if waited > after:
                    said += 1
                    self._say_cpp(
                        where, f"Failed to connect to {what} at address {self.gcs} within 5 seconds."
                    )
            time.sleep(min(0.2, 1 / self.knobs.speed))

    def _say_cpp(self, where: str, text: str) -> None:
        texts.emit(texts.ray_cpp("", "W", where, text), err=True)

    def _same_version(self, hello: dict[str, Any]) -> dict[str, Any] | str:
        """Ray refuses a joining node of another version, with a text that does not say so."""
        if hello["version"] == self.knobs.ray_version and not self._fault("ray_version_mismatch"):
            return hello
        return _traceback("ConnectionError: Could not read 'temp_dir' from GCS. Did GCS start successfully?")

    def _say_started(self) -> None:
        for line in texts.data("ray_started_head.txt" if self.head else "ray_started_worker.txt").split("\n"):
            level, where, text = line.split(" ", 2)
            text = text.replace("@HOST", self.address).replace("@PORT", str(self.port))
            texts.ray_python(level, where, text.replace("@LOGS", self.logs_dir))

    # -- minding

    def _mind(self) -> int:
        """Block; any child that ends by anything but SIGTERM takes the node down with code 1."""
        while not self.stopping:
            time.sleep(0.2)
            dead = {
                name: child.returncode for name, child in self.children.items() if child.poll() is not None
            }
            wrong = {name: code for name, code in dead.items() if code not in {0, 15, -15, 143}}
            if wrong and not self.stopping:
                self._say_died(wrong)
                self._kill_all(signal.SIGKILL)
                return 1
        self._kill_all(signal.SIGTERM)
        return 1

    def _say_died(self, wrong: dict[str, int]) -> None:
        texts.ray_python("ERR", "scripts.py:1301", "Some Ray subprocesses exited unexpectedly:")
        for name, code in wrong.items():
            texts.ray_python("ERR", "scripts.py:87", f"  \x1b[1m{name}\x1b[22m [exit code={code}]")
        with Path(self.logs_dir, "ray_process_exit.log").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"exited": wrong}) + "\n")
        texts.ray_python("ERR", "scripts.py:1309", "Remaining processes will be killed.")

    def _on_sigterm(self, *_: Any) -> None:
        self.stopping = True

    def _kill_all(self, number: int) -> None:
        for child in reversed(self.children.values()):
            if child.poll() is None:
                child.send_signal(number)
        for child in reversed(self.children.values()):
            try:
                child.wait(timeout=5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _traceback(final: str) -> str:
    return texts.data("ray_traceback.txt") + "\n" + final


def _join_tries() -> int:
    """Ray's own two settings for it."""
    given = os.environ.get("RAY_NUM_REDIS_GET_RETRIES", str(JOIN_TRIES))
    return max(1, int(knobs.ray_setting("gcs_server_port_wait_time_s", int(given))))
