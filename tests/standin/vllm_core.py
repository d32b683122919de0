"""EngineCore: the Ray driver or the parent of the mp workers, start-up in phases, then steps.

Lines of Ray workers arrive over their connection and are printed with Ray's prefix. A worker's end is
the end of its connection. After a failure the process prints what the real one prints and leaves;
API server and exit codes follow from that.
"""

import os
import queue
import signal
import socket
import threading
import time
from typing import Any

from standin import faults, knobs, proc, texts, vllm_sizes
from standin.vllm_executor import Executor, MpExecutor
from standin.vllm_ray_executor import RayExecutor
from standin.vllm_sizes import Settings

PHASES = [
    "init_distributed",
    "loading_weights",
    "compiling",
    "profiling",
    "allocating_kv_cache",
    "capturing_graphs",
]
DEAD = {"t": "eof"}


class CoreError(Exception):
    """Start-up failed; `block` is the recorded traceback, the message its last lines."""

    def __init__(self, block: str, message: str) -> None:
        super().__init__(message)
        self.block = block


class Core:
    """The engine."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.knobs = knobs.read()
        self.settings = Settings(**config["settings"])
        self.sizes = vllm_sizes.sizes(self.settings, self.knobs)
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.api = proc.Channel(socket.socket(fileno=config["fd"]))
        self.executor: Executor = (RayExecutor if self.settings.backend == "ray" else MpExecutor)(self)
        self.running: dict[str, dict[str, int]] = {}
        self.pending: set[int] = set()
        self.step_began = 0.0
        self.warned = 0.0
        self.steps = 0

    def log(self, level: str, where: str, text: str) -> None:
        texts.vllm("EngineCore", level, where, text)

    # -- start-up

    def start(self) -> None:
        began = time.monotonic()
        text = texts.data("engine_config.txt")
        values = {"MODEL": self.settings.model, "MAXLEN": self.settings.max_model_len}
        values |= {"LOAD": self.settings.load_format, "TP": self.settings.tensor_parallel_size}
        values |= {"EAGER": self.settings.enforce_eager}
        for name, value in values.items():
            text = text.replace("@" + name, str(value))
        version = self.knobs.vllm_version
        self.log("INFO", "core.py:133", f"Initializing a V1 LLM engine (v{version}) with config: {text}")
        self.executor.start()
        for phase in self._phases():
            if phase == "allocating_kv_cache":
                self._size_kv_cache()
            if phase == "profiling":
                began = time.monotonic()
            self._run_phase(phase)
        took = f"init engine (profile, create kv cache, warmup model) took {time.monotonic() - began:.2f} s"
        if not self.settings.enforce_eager:
            took += f" (compilation: {self.knobs.seconds('compiling'):.2f} s)"
        self.log("INFO", "core.py:396" if not self.settings.enforce_eager else "core.py:402", took)
        self.executor.tell(t="serving")

    def _phases(self) -> list[str]:
        skipped = {"compiling"} if self.settings.enforce_eager else set()
        if not self.settings.capture_sizes:
            skipped.add("capturing_graphs")
        return [phase for phase in PHASES if phase not in skipped]

    def _run_phase(self, name: str) -> None:
        """All ranks do it; the first bad news ends the start."""
        waiting = set(self.executor.ranks)
        self.executor.tell(t="phase", name=name)
        while waiting:
            event = self.events.get()
            if event["t"] == "done":
                waiting.discard(event["rank"])
            elif event["t"] == "error":
                raise CoreError(*self.executor.describe_error(event))
            elif event["t"] == "eof":
                raise CoreError(*self.executor.describe_death(event["rank"], name))

    def _size_kv_cache(self) -> None:
        """VLLM's own two checks, then the line with the size."""
        size, length = self.sizes, self.settings.max_model_len
        place = faults.Place("allocating_kv_cache", "", None, vllm_sizes.facts(self.settings, size))
        forced = faults.due(place, {"kv_cache_too_small", "kv_cache_none"}, self.knobs.generation)
        docs = "See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
        if size.kv <= 0 or (forced and forced.kind == "kv_cache_none"):
            text = "ValueError: No available memory for the cache blocks. Try increasing "
            text += "`gpu_memory_utilization` when "
            text += (
                "initializing the engine (this flag also controls CPU memory reservation on the CPU backend, "
            )
            raise CoreError("core_kv_too_small.txt", text + f"despite its name). {docs}")
        needed = size.kv_needed if not forced else max(size.kv_needed, size.kv + (1 << 30))
        if needed > size.kv:
            fits = size.kv // self.knobs.kv_bytes_per_token
            text = f"ValueError: To serve at least one request with the model's max seq len ({length}), "
            text += f"({texts.gib(needed)} GiB KV cache is needed, which is larger than the available KV "
            text += "cache memory "
            text += f"({texts.gib(size.kv)} GiB). Based on the available memory, the estimated maximum model "
            text += "length is "
            text += (
                f"{fits}. Try increasing `gpu_memory_utilization` (which also controls CPU memory on the CPU "
            )
            text += f"backend) or decreasing `max_model_len` when initializing the engine. {docs}"
            raise CoreError("core_kv_too_small.txt", text)
        text = f"GPU KV cache size: {size.kv_tokens:,} tokens, Maximum concurrency for {length:,} tokens per "
        text += "request: "
        self.log("INFO", "kv_cache_utils.py:2327", text + f"{size.concurrency:.2f}x")

    def fail_start(self, error: CoreError) -> None:
        """Print the failure twice, as a multiprocessing child does, and leave with 1."""
        block = texts.block(error.block, last=str(error))
        texts.emit(block)
        bare = "\n".join(line.split("] ", 1)[-1] for line in block.split("\n")[1:])
        texts.emit("Process EngineCore:\n" + bare, err=True)
        self.executor.shutdown()
        os._exit(1)

    # -- serving

    def serve(self) -> None:
        """Requests in, steps out, until something dies."""
        self.api.pump(lambda message: self.events.put(message or {"t": "api_gone"}))
        ready = {"kv_tokens": self.sizes.kv_tokens, "concurrency": self.sizes.concurrency}
        self.api.send(t="ready", **ready)
        self._clock()
        while True:
            if self.running and not self.pending:
                self._begin_step()
            event = self.events.get()
            getattr(self, "on_" + event["t"])(event)

    def _clock(self) -> None:
        """A tick keeps the step's deadline; the queue stays the only way in."""

        def tick() -> None:
            while True:
                time.sleep(0.05)
                self.events.put({"t": "tick"})

        threading.Thread(target=tick, daemon=True).start()

    def _begin_step(self) -> None:
        self.steps += 1
        self.pending = set(self.executor.ranks)
        self.step_began = self.warned = time.monotonic()
        self.executor.tell(t="step", n=self.steps)

    def on_req(self, event: dict[str, Any]) -> None:
        self.running[event["id"]] = {"left": event["tokens"], "prompt": event["prompt_tokens"]}
        if lost := self.executor.lost:  # a remote rank that died while idle shows only now
            self._die(lost)

    def on_abort(self, event: dict[str, Any]) -> None:
        self.running.pop(event["id"], None)

    def on_done(self, event: dict[str, Any]) -> None:
        """A phase's late answer: nothing waits for it."""

    def on_step(self, event: dict[str, Any]) -> None:
        if event["n"] != self.steps:
            return
        self.pending.discard(event["rank"])
        if self.pending:
            return
        out: dict[str, bool] = {}
        for name, request in list(self.running.items()):
            request["left"] -= 1
            out[name] = request["left"] <= 0
            if out[name]:
                del self.running[name]
        usage = min(1.0, sum(r["prompt"] for r in self.running.values()) / max(self.sizes.kv_tokens, 1))
        self.api.send(t="out", tokens=out, running=len(self.running), usage=usage)

    def on_error(self, event: dict[str, Any]) -> None:
        block, text = self.executor.describe_error(event)
        self._fatal(block, text)

    def on_eof(self, event: dict[str, Any]) -> None:
        if not self.executor.notices_idle(event["rank"]) and not self.running:
            self.executor.lost = [event["rank"]]
            return
        self._die([event["rank"]])

    def on_tick(self, _event: dict[str, Any]) -> None:
        if not self.pending:
            return
        now = time.monotonic()
        if now - self.step_began > float(os.environ.get("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "300")):
            text = texts.block("core_rpc_timeout.txt").replace("execute_model", "sample_tokens")
            self._leave(text)
        if now - self.warned > float(os.environ.get("VLLM_RINGBUFFER_WARNING_INTERVAL", "60")):
            self.warned = now
            text = f"No available shared memory broadcast block found in {int(now - self.step_began)} "
            text += "seconds. This "
            text += (
                "typically happens when some processes are hanging or doing some time-consuming work (e.g. "
            )
            self.log("INFO", "shm_broadcast.py:698", text + "compilation, weight/kv cache quantization).")

    def on_api_gone(self, _event: dict[str, Any]) -> None:
        """A killed API server leaves us behind, as the real one does: hold everything, for good."""

    def on_node_dead(self, event: dict[str, Any]) -> None:
        self._die(event["ranks"])

    def on_gcs_gone(self, _event: dict[str, Any]) -> None:
        texts.emit(texts.ray_cpp("", "E", "rpc_client.h:204", self.executor.gcs_text), err=True)
        os._exit(1)

    def _die(self, ranks: list[int]) -> None:
        """A rank is gone: the executor's line, the fatal block, the API server told."""
        self.executor.say_died(ranks)
        if self.running:
            config = texts.data("engine_config.txt")[:200]
            text = (
                f"Dumping input data for V1 LLM engine (v{self.knobs.vllm_version}) with config: {config}, "
            )
            self.log("ERROR", "dump_input.py:72", text)
            self._leave(texts.block("core_cancelled.txt"))
        self._leave(texts.block("core_executor_failed.txt"))

    def _fatal(self, block: str, text: str) -> None:
        shown = texts.block(block, last=text).replace(
            "EngineCore failed to start.", "EngineCore encountered a fatal error."
        )
        self._leave(shown)

    def _leave(self, text: str) -> None:
        texts.emit(text)
        self.api.send(t="dead")
        self.executor.shutdown()
        os._exit(1)

    def on_sigterm(self, *_: Any) -> None:
        self.events.put({"t": "stop"})

    def on_stop(self, _event: dict[str, Any]) -> None:
        self.log("INFO", "core.py:1454", "[shutdown] EngineCore: trigger received signal=SIGTERM")
        self.log("INFO", "core.py:1635", "[shutdown] EngineCore: start mode=abort timeout=0s")
        if self.running:
            text = f"[shutdown] EngineCore: aborting in-flight requests count={len(self.running)}"
            self.log("INFO", "core.py:1644", text)
        for name in self.running:
            self.api.send(t="aborted", id=name)
        text = "[shutdown] EngineCore: request processing complete; starting resource teardown"
        self.log("INFO", "core.py:1666", text)
        self.log("INFO", "core.py:1499", "[shutdown] EngineCore: exiting busy loop")
        self.executor.shutdown()
        os._exit(0)


def run(config: dict[str, Any]) -> int:
    """The process. SIGTERM during the start ends it at once."""
    proc.set_title("VLLM::EngineCore")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    core = Core(config)
    signal.signal(signal.SIGTERM, lambda *_: (core.executor.shutdown(), os._exit(0)))
    try:
        core.start()
    except CoreError as error:
        core.fail_start(error)
    signal.signal(signal.SIGTERM, core.on_sigterm)
    core.serve()
    return 0
