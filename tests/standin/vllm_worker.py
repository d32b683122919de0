"""A worker: RayWorkerProc (child of a raylet) or VLLM::Worker (child of EngineCore).

It goes through the phases when EngineCore says so, prints what rank N of a GPU run prints, holds
real memory, and is where most faults strike.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from standin import faults, knobs, proc, texts, vllm_faults, vllm_sizes
from standin.knobs import GIB

GLOBAL_ONCE = 0  # the rank that prints what vLLM prints once a cluster


class Worker:
    """One rank."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.rank = config["rank"]
        self.knobs = knobs.read()
        self.settings = vllm_sizes.Settings(**config["settings"])
        self.sizes = vllm_sizes.sizes(self.settings, self.knobs)
        self.name = "Worker"
        self.held: list[bytearray] = []
        self.serving = False
        self.channel = self._connect()

    def _connect(self) -> proc.Channel:
        """Reach EngineCore; rank 1 of the mp backend may be there long before rank 0."""
        while True:
            try:
                channel = proc.connect(*self.config["core"])
            except OSError:
                time.sleep(0.1)
                continue
            hello = {"rank": self.rank, "pid": os.getpid(), "node": self.config["node"]}
            channel.send(t="hello", **hello)
            return channel

    # -- printing

    def out(self, text: str, *, err: bool = False) -> None:
        """Through EngineCore under Ray, straight to our own output else."""
        if self.config.get("ray"):
            self.channel.send(t="log", rank=self.rank, text=text, err=err)
        else:
            texts.emit(text, err=err)

    def log(self, level: str, where: str, text: str) -> None:
        self.out("\n".join(texts.vllm_line(self.name, level, where, part) for part in text.split("\n")))

    def info(self, where: str, text: str) -> None:
        self.log("INFO", where, text)

    def once(self, where: str, text: str) -> None:
        if self.rank == GLOBAL_ONCE:
            self.info(where, text)

    # -- phases

    def run(self) -> None:
        """Obey EngineCore until it is gone."""
        while (message := self.channel.receive()) is not None:
            if message["t"] == "phase":
                self.phase(message["name"])
            elif message["t"] == "step":
                self.step(message["n"])
            elif message["t"] == "serving":
                self.serving = True
            elif message["t"] == "exit":
                os._exit(0)
        time.sleep(self.knobs.driver_loss_s)
        if not self.config.get("ray"):
            self.info("multiproc_executor.py:843", "Parent process exited, terminating worker queues")
        os._exit(0)

    def fault(self, phase: str, kinds: set[str] = vllm_faults.KINDS) -> None:
        """Ask for faults here; most do not return."""
        settings = vllm_sizes.facts(self.settings, self.sizes)
        place = faults.Place(phase, self.config["node"], self.rank, settings)
        fault = faults.due(place, kinds, self.knobs.generation, lambda f: vllm_faults.accept(self, f, phase))
        if fault:
            vllm_faults.strike(self, fault, phase)

    def phase(self, name: str) -> None:
        began = time.monotonic()
        try:
            self.fault(name)
            getattr(self, name)()
        except vllm_faults.WorkerError as error:
            vllm_faults.tell(self, error, name)
            return
        self._fill(name, began)
        self.channel.send(t="done", rank=self.rank, seconds=time.monotonic() - began)

    def _fill(self, name: str, began: float) -> None:
        """Make the phase last as long as the knobs say."""
        left = began + self.knobs.seconds(name) - time.monotonic()
        if left > 0:
            time.sleep(left)
        faults.hold(name, self.config["node"])

    def init_distributed(self) -> None:
        world, port = self.settings.tensor_parallel_size, self.config["dist_port"]
        method = f"tcp://{self.config['core'][0]}:{port}"
        if not self.config.get("ray") and self.settings.nnodes == 1:
            method = f"file:///tmp/vllm_dist_{self.config['core_pid']:032x}"
        text = f"world_size={world} rank={self.rank} local_rank={self.config['local_rank']} "
        self.info("parallel_state.py:1906", text + f"distributed_init_method={method} backend=nccl")
        self.once("pynccl.py:148", "vLLM is using nccl==2.28.9")
        text = f"rank {self.rank} in world size {world} is assigned as DP rank 0, PP rank 0, PCP rank 0, "
        text += f"TP rank {self.rank}, ETP rank {self.rank}, EP rank N/A, EPLB rank N/A"
        self.once("parallel_state.py:2350", text)
        if world > 1:
            self.name = f"Worker_TP{self.rank}"
        proc.set_title("ray::RayWorkerProc.run" if self.config.get("ray") else f"VLLM::{self.name}")
        if self.sizes.free < self.sizes.requested:
            raise vllm_faults.free_memory(self)

    def loading_weights(self) -> None:
        model, strategy = self.settings.model, self.settings.safetensors_load_strategy
        self.once("gpu_model_runner.py:5040", f"Starting to load model {model}...")
        seconds = self.knobs.seconds("loading_weights")
        if self.settings.load_format != "dummy":
            text = "Filesystem type for checkpoints: EXT4. Checkpoint size: "
            text += f"{2 * self.knobs.weights_bytes / GIB:.2f} "
            text += f"GiB. Available RAM: {self.sizes.free / GIB:.2f} GiB."
            self.info("weight_utils.py:1108", text)
            if strategy is None:
                self.info("weight_utils.py:1131", texts.data("prefetch_disabled.txt"))
            vllm_faults.check_files(self)
            self._shards(seconds)
            self.info("default_loader.py:501", f"Loading weights took {seconds:.2f} seconds")
        else:
            self._hold(self.knobs.weights_mib << 20)
        text = f"Model loading took {texts.gib(self.sizes.weights)} GiB memory and {seconds:.6f} seconds"
        self.info("gpu_model_runner.py:5150", text)

    def _shards(self, seconds: float) -> None:
        """Read shard by shard; rank 0 shows the bar, one line an update."""
        total, began = self.config["shards"], time.monotonic()
        share = (self.knobs.weights_mib << 20) // total
        for done in range(total + 1):
            if done:
                time.sleep(seconds / total)
                self._hold(share)
            if done == total // 2:
                self.fault("loading_weights_half")
            if self.rank == 0:
                desc = f"\rLoading safetensors checkpoint shards: {100 * done // total:3d}% Completed |"
                self.out(texts.bar(desc, done, total, time.monotonic() - began) + "\n", err=True)

    def _hold(self, count: int) -> None:
        """Real memory: written to, so that it is resident."""
        self.held.append(bytearray(b"\x5a") * count)

    def compiling(self) -> None:
        cache = str(
            Path(
                str(Path("~/.cache/vllm").expanduser()), f"torch_compile_cache/48db1c5b90/rank_{self.rank}_0"
            )
        )
        seconds, most = self.knobs.seconds("compiling"), self.settings.max_num_batched_tokens
        self.once("backends.py:1105", f"Using cache directory: {cache}/backbone for vLLM's torch.compile")
        time.sleep(seconds / 4)
        self.once("backends.py:1167", f"Dynamo bytecode transform time: {seconds / 4:.2f} s")
        time.sleep(seconds / 2)
        self.once("backends.py:383", f"Cache the graph of compile range (1, {most}) for later use")
        self.once(
            "backends.py:399", f"Compiling a graph for compile range (1, {most}) takes {seconds / 2:.2f} s"
        )
        self.once("decorators.py:708", f"saved AOT compiled function to {cache}/model")
        self.once("monitor.py:53", f"torch.compile took {seconds:.2f} s in total")

    def profiling(self) -> None:
        pinned = self.settings.kv_cache_memory_bytes
        self.once(
            "monitor.py:81", f"Initial profiling/warmup run took {self.knobs.seconds('profiling'):.2f} s"
        )
        if pinned is not None:
            text = texts.data("kv_pinned.txt").replace("@FREE", texts.gib(self.sizes.free))
            self.info("gpu_worker.py:669", text.replace("@KV", texts.gib(pinned)))
            return
        if self.settings.capture_sizes:
            count, largest = len(self.settings.capture_sizes), self.settings.capture_sizes[-1]
            groups = ", ".join(f"{mode}={count} (largest={largest})" for _, mode in self._graph_sets())
            self.info("gpu_model_runner.py:6369", f"Profiling CUDA graph memory: {groups}")
            text = f"Estimated CUDA graph memory: {self.sizes.graphs / GIB:.2f} GiB total"
            self.info("gpu_model_runner.py:6475", text)
        self.once("gpu_worker.py:760", f"Available KV cache memory: {texts.gib(self.sizes.kv)} GiB")

    def allocating_kv_cache(self) -> None:
        self._hold(max(self.sizes.kv, 0) // self.knobs.kv_scale)

    def _graph_sets(self) -> list[tuple[str, str]]:
        mode = self.settings.cudagraph_mode
        prefill, decode = ("mixed prefill-decode", "PIECEWISE"), ("decode", "FULL")
        return {
            "PIECEWISE": [prefill],
            "FULL": [("mixed prefill-decode", "FULL")],
            "FULL_DECODE_ONLY": [decode],
        }.get(mode, [prefill, decode])

    def capturing_graphs(self) -> None:
        seconds, sets, total = (
            self.knobs.seconds("capturing_graphs"),
            self._graph_sets(),
            len(self.settings.capture_sizes),
        )
        for what, mode in sets:
            began = time.monotonic()
            for done in range(total + 1):
                time.sleep(seconds / len(sets) / (total + 1))
                if done == total // 2 and what == sets[0][0]:
                    self.fault("capturing_graphs_half")
                if self.rank == 0 and (done % 5 == 0 or done == total):
                    self.out(self._graph_bar(what, mode, done, total, time.monotonic() - began), err=True)
        self._hold(max(self.sizes.graphs, 0) // self.knobs.kv_scale)
        took = f"Graph capturing finished in {seconds:.0f} secs, took {self.sizes.graphs / GIB:.2f} GiB"
        self.once("gpu_model_runner.py:6582", took)
        text = f"CUDA graph pool memory: {texts.gib(self.sizes.graphs)} GiB (actual), "
        text += f"{texts.gib(self.sizes.graphs)} GiB (estimated), difference: 0.0 GiB (0.0%)."
        self.info("gpu_worker.py:971", text)
        if self.settings.kv_cache_memory_bytes is None:
            self.info("gpu_worker.py:1030", vllm_faults.suggestion(self))

    @staticmethod
    def _graph_bar(what: str, mode: str, done: int, total: int, elapsed: float) -> str:
        blocks = "█" * (10 * done // total)
        desc = f"\rCapturing CUDA graphs ({what}, {mode}): {100 * done // total:3d}%|{blocks:<10}|"
        return texts.bar(desc, done, total, elapsed)

    # -- serving

    def raylet_gone(self) -> None:
        """Our raylet is dead: Ray says so through the driver, and we follow after a while."""
        text = "\x1b[33m(raylet)\x1b[0m " + texts.data("raylet_terminated.txt")
        self.channel.send(t="raylet_gone", rank=self.rank, text=text)
        time.sleep(self.knobs.raylet_loss_s)

    def step(self, number: int) -> None:
        try:
            self.fault("serving")
        except vllm_faults.WorkerError as error:
            vllm_faults.tell(self, error, "serving")
            return
        faults.hold("serving", self.config["node"])
        time.sleep(self.knobs.token_interval_s / self.knobs.speed)
        self.channel.send(t="step", rank=self.rank, n=number)


def run(config: dict[str, Any]) -> int:
    """The process; under Ray its standard input is the raylet's hand, and its output the way back."""
    proc.set_title("ray::RayWorkerProc" if config.get("ray") else "VLLM::Worker")
    if config.get("ray"):
        signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
    worker = Worker(config)
    if config.get("ray"):
        proc.die_with_stdin(worker.raylet_gone)
    vllm_faults.watch_serving(worker)
    worker.run()
    return 0


def ask_raylet(*words: object) -> None:
    """A line on our standard output, which the raylet reads."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def shard_count(model: str, default: int) -> int:
    """As many as the model's directory has, by its index where there is one."""
    index = str(Path(model, "model.safetensors.index.json"))
    if Path(index).exists():
        with Path(index).open(encoding="utf-8") as file:
            return len(set(json.load(file)["weight_map"].values()))
    names = [entry.name for entry in Path(model).iterdir()] if Path(model).is_dir() else []
    return sum(name.endswith(".safetensors") for name in names) or default
