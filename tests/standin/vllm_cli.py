"""`vllm serve`: the API server's process, and the headless member of the mp backend.

Before readiness the port is bound but does not listen: clients are refused. After readiness any death
of the engine ends the server with exit code 0, as the real one's does; before, with 1.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from standin import faults, knobs, options, proc, texts, vllm_sizes
from standin.vllm_engine import Engine
from standin.vllm_worker import shard_count

USAGE = """usage: vllm [-h] [-v]
            {chat,complete,serve,launch,bench,collect-env,download-kernels,preload,run-batch,snapshot}
            ...
vllm: error: """
BANNER = [
    "",
    "       █     █     █▄   ▄█",
    " ▄▄ ▄█ █     █     █ ▀▄▀ █  version {version}",
    "  █▄█▀ █     █     █     █  model   {model}",
    "   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀",
    "",
]


def main(arguments: list[str]) -> int:
    """The program."""
    if arguments[:1] in (["--version"], ["-v"]):
        sys.stdout.write(knobs.read().vllm_version + "\n")
        return 0
    if arguments[:1] != ["serve"]:
        what = arguments[0] if arguments else "None"
        texts.say_error(f"{USAGE}argument subparser: invalid choice: {what!r}")
        return 2
    try:
        args = options.vllm_serve(arguments[1:])
    except options.UsageError as error:
        texts.say_error(USAGE + str(error))
        return 2
    return Serve(args).run()


class Serve:
    """One `vllm serve`."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.knobs = knobs.read()
        self.headless = bool(args.headless)
        self.who = "MainProcess" if self.headless else "APIServer"
        self.model = args.model_tag or args.model or "Qwen/Qwen3-0.6B"
        self.node = os.environ.get("VLLM_HOST_IP") or args.host or "127.0.0.1"
        self.stop = threading.Event()

    def log(self, level: str, where: str, text: str) -> None:
        texts.vllm(self.who, level, where, text)

    def run(self) -> int:
        if not self.headless:
            faults.count_start()
            self._banner()
        failure = self._bind() if not self.headless else None
        if failure is None:
            failure = self._resolve()
        if failure is not None:
            texts.say_error(failure)
            return 1
        config = {
            "settings": asdict(self.settings),
            "shards": shard_count(self.model, self.knobs.shards),
            "node": self.node,
            "master": [self.args.master_addr or "127.0.0.1", self.args.master_port or 29501],
            "dist_port": self.args.master_port or 41765,
        }
        return self._headless(config) if self.headless else self._serve(config)

    # -- until the engine

    def _banner(self) -> None:
        for line in BANNER:
            text = line.format(version=self.knobs.vllm_version, model=self.model)
            self.log("INFO", "api_utils.py:347", text)
        given = {"model_tag": self.args.model_tag} if self.args.model_tag else {}
        given |= {
            name: value
            for name, value in vars(self.args).items()
            if value is not None and name != "model_tag"
        }
        self.log("INFO", "api_utils.py:286", f"non-default args: {given}")

    def _bind(self) -> str | None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken = faults.due(
            faults.Place("resolving_config", self.node), {"port_in_use"}, self.knobs.generation
        )
        if taken:
            return texts.block("port_in_use.txt")
        try:
            self.sock.bind((self.args.host or "0.0.0.0", self.args.port or 8000))
        except OSError:
            return texts.block("port_in_use.txt")
        return None

    def _resolve(self) -> str | None:
        """Config phase: the model's own description, its limits, its architecture."""
        if self.model.startswith("/") and not Path(self.model).exists():
            return texts.block("model_missing.txt").replace("/srv/lab/models/nope", self.model)
        time.sleep(self.knobs.seconds("resolving_config"))
        faults.hold("resolving_config", self.node)
        config = vllm_sizes.model_config(self.model, self.knobs)
        architecture = config["architectures"][0]
        place = faults.Place("resolving_config", self.node)
        bad = faults.due(place, {"model_unsupported"}, self.knobs.generation)
        if bad or architecture in self.knobs.unsupported_architectures:
            name = bad.params.get("architecture", "FooBarForCausalLM") if bad else architecture
            return texts.block("unsupported_arch.txt").replace("FooBarForCausalLM", name)
        self.settings = vllm_sizes.settings(self.args, config, self.knobs)
        derived, length = config["max_position_embeddings"], self.settings.max_model_len
        if length > derived and os.environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") != "1":
            return texts.block("max_len.txt").replace("999999", str(length)).replace("2048.0", f"{derived}.0")
        self.log("INFO", "model.py:733", f"Resolved architecture: {architecture}")
        self.log("INFO", "model.py:2152", f"Using max model len {length}")
        if self.settings.nnodes > 1:
            text = f"Inferred data_parallel_rank 0 from node_rank {self.settings.node_rank}"
            self.log("INFO", "arg_utils.py:2472", text)
        text = (
            f"Chunked prefill is enabled with max_num_batched_tokens={self.settings.max_num_batched_tokens}."
        )
        self.log("INFO", "scheduler.py:307", text)
        if self.settings.enforce_eager:
            self.log("WARNING", "vllm.py:1703", texts.data("eager.txt"))
        return None

    # -- headless

    def _headless(self, config: dict[str, Any]) -> int:
        """Rank 1 and up of the mp backend: parent of its own workers, no API."""
        host, port = config["master"]
        text = f"Launching vLLM (v{self.knobs.vllm_version}) headless multiproc executor, with head node "
        text += "address "
        self.log("INFO", "serve.py:224", text + f"{host}:{port} for torch.distributed process group.")
        local = self.settings.tensor_parallel_size // self.settings.nnodes
        first = self.settings.node_rank * local
        children = {}
        for rank in range(first, first + local):
            own = {"rank": rank, "local_rank": rank - first, "core": [host, port], "core_pid": 0}
            children[rank] = proc.spawn("worker", {**config, **own, "api_pid": os.getpid()})
        signal.signal(signal.SIGTERM, lambda *_: self.stop.set())
        while not self.stop.is_set():
            for rank, child in children.items():
                if child.poll() is not None:
                    self._say_worker_gone(rank)
                    _end(children.values())
                    return 0
            self.stop.wait(0.05)
        _end(children.values())
        return 0

    def _say_worker_gone(self, rank: int) -> None:
        text = f"Worker proc VllmWorker-{rank} died unexpectedly (exit code: None), shutting down executor."
        self.log("ERROR", "multiproc_executor.py:315", text)
        self.log("INFO", "multiproc_executor.py:479", "[shutdown] Executor: waiting for worker exit count=0")
        self.log("INFO", "multiproc_executor.py:486", "[shutdown] Executor: all workers exited gracefully")

    # -- serving

    def _serve(self, config: dict[str, Any]) -> int:
        ours, theirs = socket.socketpair()
        core = proc.spawn("core", {**config, "fd": theirs.fileno()}, pass_fds=[theirs.fileno()])
        theirs.close()
        names = self.args.served_model_name or [self.model]
        engine = Engine(proc.Channel(ours), core, self.settings, names, self.knobs)
        stopped = []
        signal.signal(signal.SIGTERM, lambda *_: (stopped.append(1), engine.events.put({"t": "sigterm"})))
        signal.signal(signal.SIGINT, lambda *_: (stopped.append(1), engine.events.put({"t": "sigterm"})))
        first = engine.events.get()
        if first["t"] != "ready":
            return self._start_failed(core, stopped=bool(stopped))
        engine.ready(first)
        time.sleep(self.knobs.seconds("starting_api"))
        faults.hold("starting_api", self.node)
        return self._open(engine, core)

    def _start_failed(self, core: subprocess.Popen[bytes], *, stopped: bool) -> int:
        """EngineCore is gone before it was ready, or we were told to stop."""
        if stopped:
            _end([core])
            return 0
        code = core.wait()
        gone = "{}" if code == 1 else f"{{'EngineCore': {code}}}"
        last = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): "
        last += f"{gone}"
        texts.say_error(texts.block("api_core_failed.txt", last=last))
        return 1

    def _open(self, engine: Engine, core: subprocess.Popen[bytes]) -> int:
        from standin.vllm_http import HttpServer

        host, port = self.sock.getsockname()
        self.log("INFO", "entry.py:136", "Supported tasks: ['generate']")
        self.log("INFO", "entry.py:140", f"Starting vLLM server on http://{host}:{port}")
        self.log("INFO", "launcher.py:186", "Available routes are:")
        for route in texts.data("routes.txt").split("\n"):
            self.log("INFO", "launcher.py:195", f"Route: {route}")
        texts.emit(f"INFO:     Started server process [{os.getpid()}]", err=True)
        texts.emit("INFO:     Waiting for application startup.", err=True)
        server = HttpServer(self.sock, engine)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        texts.emit("INFO:     Application startup complete.", err=True)
        event = engine.wait_end()
        if event == "sigterm":
            self._shut_down(engine, core)
        else:
            self._engine_died(engine, core, killed=event == "eof")
        server.close()
        return 0

    def _uvicorn_down(self) -> None:
        for text in ("Shutting down", "Waiting for application shutdown.", "Application shutdown complete."):
            texts.emit(f"INFO:     {text}", err=True)

    def _shut_down(self, engine: Engine, core: subprocess.Popen[bytes]) -> None:
        self.log("INFO", "launcher.py:254", "[shutdown] API server: shutdown triggered")
        self.log(
            "INFO", "launcher.py:270", "[shutdown] API server: stopping engine client mode=abort timeout=0s"
        )
        self._stop_core(core)
        engine.drain()
        self.log("INFO", "launcher.py:279", "[shutdown] API server: engine client stopped")
        self.log("INFO", "launcher.py:282", "[shutdown] API server: signalling HTTP server shutdown")
        self.log("INFO", "launcher.py:304", "[shutdown] API server: shutting down FastAPI HTTP server")
        self._uvicorn_down()

    def _stop_core(self, core: subprocess.Popen[bytes]) -> None:
        self.log("INFO", "core_client.py:770", "[shutdown] MPClient: start timeout=0s")
        self.log("INFO", "core_client.py:772", "[shutdown] MPClient: stopping engine manager")
        if core.poll() is None:
            self.log("INFO", "utils.py:628", "[shutdown] Process manager: send sigterm to process EngineCore")
            _end([core])
        self.log("INFO", "core_client.py:774", "[shutdown] MPClient: engine manager stopped")
        self.log("INFO", "core_client.py:775", "[shutdown] MPClient: cleaning up background resources")
        self.log("INFO", "core_client.py:777", "[shutdown] MPClient: complete")

    def _engine_died(self, engine: Engine, core: subprocess.Popen[bytes], *, killed: bool) -> None:
        """Requests get 500, /health 503 for a moment, then the server is gone."""
        if killed:
            text = "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup"
            self.log("WARNING", "core_client.py:817", text)
        texts.emit(texts.block("api_dead.txt"))
        engine.fail_all()
        if os.environ.get("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH") == "1":
            while engine.wait_end() != "sigterm":
                pass
        else:
            time.sleep(0.2)
        self._uvicorn_down()
        texts.emit(f"INFO:     Finished server process [{os.getpid()}]", err=True)
        self._stop_core(core)


def _end(children: Any) -> None:
    """SIGTERM, a moment, SIGKILL."""
    for child in children:
        child.send_signal(signal.SIGTERM)
    for child in children:
        try:
            child.wait(timeout=1)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
