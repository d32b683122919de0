"""EngineCore's workers as Ray actors: placement, lines with Ray's prefix, and what Ray tells of a death."""

import contextlib
import os
import re
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any

from standin import knobs, texts
from standin.vllm_executor import CANCELLED, Executor
from standin.vllm_faults import INIT_PHASES

if TYPE_CHECKING:
    from standin.vllm_core import Core

DEDUP = (
    "\x1b[32m [repeated {count}x across cluster] (Ray deduplicates logs by default. Set "
    "RAY_DEDUP_LOGS=0 to disable log deduplication, or see "
    "https://docs.ray.io/en/master/ray-observability/user-guides/"
    "configure-logging.html#log-deduplication for more options.)\x1b[0m"
)


class RayExecutor(Executor):
    """RayExecutorV2: named actors, one a GPU of the cluster; their lines come with Ray's prefix."""

    def __init__(self, core: "Core") -> None:
        super().__init__(core)
        self.actors: dict[int, dict[str, Any]] = {}
        self.address = os.environ.get("RAY_ADDRESS", "127.0.0.1:6379")
        self.host = os.environ.get("VLLM_HOST_IP") or self.address.rpartition(":")[0]
        self.dedup = os.environ.get("RAY_DEDUP_LOGS", "1") != "0"
        self.seen: dict[str, int] = {}
        self.held: dict[str, list[Any]] = {}
        self.lock = threading.Lock()

    def start(self) -> None:
        from standin import rpc

        self._connect()
        self.gcs = rpc.Client(self.address)
        nodes = self._place()
        port = self.listen(self.host).getsockname()[1]
        instance = time.time_ns()
        for rank, node in enumerate(nodes):
            name = f"vllm_Worker_{instance}_TP{rank}"
            local = sum(1 for other in nodes[:rank] if other["node_id"] == node["node_id"])
            spec = {
                **self.worker_config(rank, (self.host, port), local),
                "name": name,
                "environment": dict(os.environ),
            }
            actor_id = secrets.token_hex(12) + "01000000"
            reply = self.gcs.call(
                "create_actor", timeout=30.0, actor_id=actor_id, node_id=node["node_id"], spec=spec
            )
            self.actors[rank] = {**reply, "node": node, "name": name}
        threading.Thread(target=self._patrol, daemon=True).start()
        if self.dedup:
            threading.Thread(target=self._flush_held, daemon=True).start()
        self.wait_joined()

    def _connect(self) -> None:
        """Ray's three lines; an unreachable GCS ends the start."""
        import grpc

        from standin import rpc
        from standin.vllm_core import CoreError

        given = f"Using address {self.address} set in the environment variable RAY_ADDRESS"
        texts.ray_python("INFO", "worker.py:1691", given)
        texts.ray_python(
            "INFO", "worker.py:1841", f"Connecting to existing Ray cluster at address: {self.address}..."
        )
        try:
            rpc.Client(self.address).call("hello", timeout=5.0)
        except grpc.RpcError as error:
            text = f"ConnectionError: ray.init(address='{self.address}') failed: {error.details()}"
            raise CoreError("core_ray_init_failed.txt", text) from error
        texts.ray_python("INFO", "worker.py:2029", "Connected to Ray cluster.")

    def _place(self) -> list[dict[str, Any]]:
        """A placement group: waits for GPUs at 10, 30, 70 ... seconds, gives up after 1800."""
        log, count = self.core.log, len(self.ranks)
        log("INFO", "ray_utils.py:607", "No current placement group found. Creating a new placement group.")
        began, interval, say_at = time.monotonic(), 10.0, 10.0
        speed = self.core.knobs.speed
        while not (nodes := self.gcs.call("place", count=count, driver=self.host)):
            waited = (time.monotonic() - began) * speed
            if waited >= say_at:
                self._say_waiting(int(waited), count)
                interval *= 2
                say_at += interval
            if waited > 1800:
                self._give_up(count)
            time.sleep(0.1)
        if len({node["node_id"] for node in nodes}) > 1:
            for node in nodes:
                text = (
                    texts.data("tp_spread.txt").replace("@NODE", node["node_id"]).replace("@TP", str(count))
                )
                log("WARNING", "ray_utils.py:321", text)
        return nodes

    def _say_waiting(self, seconds: int, count: int) -> None:
        specs = [{"GPU": 1.0}] * count
        text = f"Waiting for creating a placement group of specs for {seconds} seconds. specs={specs}. Check "
        text += "`ray status` and `ray list nodes` to see if you have enough resources, and make sure the IP "
        text += "addresses "
        text += "used by ray cluster are the same as VLLM_HOST_IP environment variable specified in each "
        text += "node if you "
        self.core.log("INFO", "ray_utils.py:467", text + "are running on a multi-node.")

    def _give_up(self, count: int) -> None:
        from standin.vllm_core import CoreError

        text = f"ValueError: Cannot provide a placement group requiring {count} GPUs (placement_group_specs="
        text += f"{[{'GPU': 1.0}] * count}) within 1800 seconds.\nTensor parallel size may exceed available "
        text += "GPUs in "
        raise CoreError(
            "core_ray_init_failed.txt",
            text + "your cluster. Check resources with `ray status` and `ray list nodes`.",
        )

    # -- lines of the workers

    def show(self, rank: int, message: dict[str, Any]) -> None:
        """Ray's prefix on every line; one that differs only in numbers from another worker's is held back."""
        prefix = self._prefix(rank)
        for line in message["text"].removesuffix("\n").split("\n"):
            pattern = re.sub(r"\d+", "", line)
            with self.lock:
                first = self.seen.setdefault(pattern, rank)
                if self.dedup and first != rank and pattern.strip():
                    entry = self.held.setdefault(pattern, [0, "", message["err"]])
                    entry[0] += 1
                    entry[1] = f"{prefix} {line}"
                    continue
            texts.emit(f"{prefix} {line}", err=message["err"])

    def _prefix(self, rank: int) -> str:
        hello = self.hellos[rank]
        where = "" if hello["node"] == self.host else f", ip={hello['node']}"
        return f"\x1b[36m(RayWorkerProc pid={hello['pid']}{where})\x1b[0m"

    def _flush_held(self) -> None:
        while True:
            time.sleep(self.core.knobs.log_hold_s)
            self.flush()

    def flush(self) -> None:
        with self.lock:
            held, self.held = self.held, {}
        for count, line, err in held.values():
            texts.emit(line + (DEDUP.format(count=count) if count > 1 else ""), err=err)

    # -- ends

    def _patrol(self) -> None:
        """A node that GCS calls dead takes its ranks along; without GCS the driver dies like a raylet."""
        import grpc

        from standin.ray_raylet import GCS_GONE

        patience = knobs.ray_setting("gcs_rpc_server_reconnect_timeout_s", 60)
        seen = time.monotonic()
        while not self.closing:
            time.sleep(0.25)
            try:
                dead = [rank for rank, actor in self.actors.items() if not self._node_alive(actor)]
                seen = time.monotonic()
            except grpc.RpcError:
                dead = []
            if dead:
                self.core.events.put({"t": "node_dead", "ranks": dead, "rank": dead[0]})
                return
            if time.monotonic() - seen > patience:
                self.gcs_text = f"Failed to connect to GCS within {patience:g} seconds. {GCS_GONE}"
                self.core.events.put({"t": "gcs_gone"})
                return

    def _node_alive(self, actor: dict[str, Any]) -> bool:
        return bool(self.gcs.call("node", timeout=2.0, node_id=actor["node"]["node_id"])["alive"])

    def describe_error(self, event: dict[str, Any]) -> tuple[str, str]:
        if not event["early"]:
            return super().describe_error(event)
        hello, actor = self.hellos[event["rank"]], self.actors[event["rank"]]
        text = f"ray.exceptions.RayTaskError({event['kind'].rpartition('.')[2]}): \x1b[36mray::RayWorkerProc."
        text += f"initialize_worker()\x1b[39m (pid={hello['pid']}, ip={hello['node']}, "
        text += f"actor_id={actor['actor_id']}, "
        text += "repr=<vllm.v1.executor.ray_executor_v2.RayWorkerProc object at 0x7f02411bd0d0>)\n"
        return "core_ray_init_failed.txt", text + f"{event['kind']}: {event['message']}"

    def describe_death(self, rank: int, phase: str) -> tuple[str, str]:
        """During the load an actor call is open and Ray tells the cause; later only the queue ends."""
        if phase not in INIT_PHASES:
            self.say_died([rank])
            return "core_cancelled_start.txt", CANCELLED
        death = self._cause(rank)
        if "low on memory" in death:
            return "core_ray_init_failed.txt", f"ray.exceptions.OutOfMemoryError: {death}"
        actor = self.actors[rank]
        text = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
        text += f"\tclass_name: RayWorkerProc\n\tactor_id: {actor['actor_id']}\n\tpid: {actor['pid']}\n"
        text += f"\tname: {actor['name']}\n\tip: {actor['node']['address']}\n"
        return (
            "core_ray_init_failed.txt",
            text + f"The actor is dead because its worker process has died. {death}",
        )

    def _cause(self, rank: int) -> str:
        """What Ray knows of an actor's end, as soon as its raylet has told."""
        import grpc

        deadline = time.monotonic() + 2
        while time.monotonic() < deadline and rank not in self.orphaned:
            with contextlib.suppress(grpc.RpcError):
                actor = self.gcs.call("actor", timeout=1.0, actor_id=self.actors[rank]["actor_id"])
                if not actor["alive"]:
                    return str(actor["death"])
            time.sleep(0.05)
        return ""

    def say_died(self, ranks: list[int]) -> None:
        text = f"RayWorkerProc rank={ranks} died unexpectedly, shutting down executor."
        self.core.log("ERROR", "ray_executor_v2.py:522", text)
        cause = self._cause(ranks[0])
        if cause and "low on memory" not in cause:
            actor, hello = self.actors[ranks[0]], self.hellos[ranks[0]]
            said = texts.block("raylet_worker_died.txt", LEASE=actor["lease_id"], WORKERID=actor["worker_id"])
            said = said.replace("@NODEID", actor["node"]["node_id"]).replace("@ADDRESS", hello["node"])
            texts.emit(f"\x1b[33m(raylet)\x1b[0m {said.replace('@WPID', str(hello['pid']))}", err=True)

    def shutdown(self) -> None:
        super().shutdown()
        self.flush()
