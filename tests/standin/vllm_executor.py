"""How EngineCore gets its workers: what all ways share, and workers as its own children."""

import os
import signal
import socket
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

from standin import proc, texts
from standin.vllm_faults import INIT_PHASES

if TYPE_CHECKING:
    from standin.vllm_core import Core

CANCELLED = "RuntimeError: cancelled"
INIT_FAILED = (
    "Exception: WorkerProc initialization failed due to an exception in a background process. "
    "See stack trace for root cause."
)


class Executor:
    """What both share: one connection a rank, and the texts of a rank's end."""

    gcs_text = ""

    def __init__(self, core: "Core") -> None:
        self.core = core
        self.ranks = list(range(core.settings.tensor_parallel_size))
        self.channels: dict[int, proc.Channel] = {}
        self.hellos: dict[int, dict[str, Any]] = {}
        self.lost: list[int] = []
        self.orphaned: set[int] = set()
        self.closing = False

    def start(self) -> None:
        raise NotImplementedError

    def listen(self, host: str, port: int = 0) -> socket.socket:
        server = socket.create_server((host, port), backlog=16)
        threading.Thread(target=self._accept, args=(server,), daemon=True).start()
        return server

    def _accept(self, server: socket.socket) -> None:
        while True:
            channel = proc.Channel(server.accept()[0])
            hello = channel.receive()
            if hello is None or hello.get("t") != "hello":
                channel.close()
                continue
            rank = hello["rank"]
            self.channels[rank], self.hellos[rank] = channel, hello
            channel.pump(lambda message, rank=rank: self._from_worker(rank, message))
            self.core.events.put({"t": "joined", "rank": rank})

    def _from_worker(self, rank: int, message: dict[str, Any] | None) -> None:
        if message is None:
            if not self.closing:
                self.ended(rank)
        elif message["t"] == "log":
            self.show(rank, message)
        elif message["t"] == "raylet_gone":
            self.orphaned.add(rank)
            texts.emit(message["text"], err=True)
        else:
            self.core.events.put(message)

    def ended(self, rank: int) -> None:
        self.core.events.put({"t": "eof", "rank": rank})

    def show(self, rank: int, message: dict[str, Any]) -> None:
        texts.emit(message["text"], err=message["err"])

    def wait_joined(self) -> None:
        """Until every rank has said hello; a rank that dies before is an ordinary death."""
        from standin.vllm_core import CoreError

        missing = set(self.ranks)
        while missing:
            event = self.core.events.get()
            if event["t"] == "joined":
                missing.discard(event["rank"])
            elif event["t"] == "eof":
                raise CoreError(*self.describe_death(event["rank"], "init_distributed"))

    def tell(self, **message: Any) -> None:
        for channel in self.channels.values():
            channel.send(**message)

    def worker_config(self, rank: int, core: tuple[str, int], local_rank: int) -> dict[str, Any]:
        config = self.core.config
        common = {"settings": config["settings"], "shards": config["shards"], "api_pid": os.getppid()}
        own = {"rank": rank, "local_rank": local_rank, "core": core, "core_pid": os.getpid()}
        return {**common, **own, "dist_port": config["dist_port"], "node": config["node"]}

    def notices_idle(self, rank: int) -> bool:
        """Whether the end of an idle rank is seen at once."""
        return True

    def describe_error(self, event: dict[str, Any]) -> tuple[str, str]:
        message = f"{event['message']}', please check the stack trace above for the root cause"
        return "core_worker_failed.txt", f"RuntimeError: Worker failed with error '{message}"

    def describe_death(self, rank: int, phase: str) -> tuple[str, str]:
        raise NotImplementedError

    def say_died(self, ranks: list[int]) -> None:
        raise NotImplementedError

    def shutdown(self) -> None:
        self.closing = True
        self.tell(t="exit")


class MpExecutor(Executor):
    """Workers as children of EngineCore; ranks of other nodes come over the network by themselves."""

    def __init__(self, core: "Core") -> None:
        super().__init__(core)
        self.children: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        settings, config = self.core.settings, self.core.config
        host, port = config["master"] if settings.nnodes > 1 else ("127.0.0.1", 0)
        local = len(self.ranks) // settings.nnodes
        text = f"DP group leader: node_rank=0, node_rank_within_dp=0, master_addr={host}, "
        text += f"mq_connect_ip={host} (local), "
        where = "multiproc_executor.py:153"
        self.core.log("INFO", where, text + f"world_size={len(self.ranks)}, local_world_size={local}")
        address = (host, self.listen(host, port).getsockname()[1])
        for rank in range(local):
            self.children[rank] = proc.spawn("worker", self.worker_config(rank, address, rank))
        self.wait_joined()

    def notices_idle(self, rank: int) -> bool:
        return rank in self.children

    def describe_error(self, event: dict[str, Any]) -> tuple[str, str]:
        if event["early"]:
            return "core_worker_init_failed.txt", INIT_FAILED
        return super().describe_error(event)

    def describe_death(self, rank: int, phase: str) -> tuple[str, str]:
        if phase in INIT_PHASES:
            return "core_worker_init_failed.txt", INIT_FAILED
        self.say_died([rank])
        return "core_cancelled_start.txt", CANCELLED

    def say_died(self, ranks: list[int]) -> None:
        child = self.children.get(ranks[0])
        if child is None:
            self.say_peer_closed(ranks[0])
            return
        text = f"Worker proc VllmWorker-{ranks[0]} died unexpectedly (exit code: {child.wait()}), shutting "
        text += "down executor."
        self.core.log("ERROR", "multiproc_executor.py:315", text)

    def say_peer_closed(self, rank: int) -> None:
        """A rank of another node is gone: what the local worker's gloo sees."""
        hello = self.hellos[0]
        text = "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] "
        text += "Connection closed by peer "
        text += f"[{self.hellos[rank]['node']}]:5285. This is typically caused by a remote worker crashing. "
        text += "Check the "
        text += "logs of the remote worker before reporting an error."
        block = texts.block("worker_exception.txt", last=text)
        block = block.replace(f"pid={os.getpid()}", f"pid={hello['pid']}").replace("(Worker ", "(Worker_TP0 ")
        texts.emit(block)

    def shutdown(self) -> None:
        super().shutdown()
        deadline = time.monotonic() + 0.5
        for child in self.children.values():
            try:
                child.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGKILL)
