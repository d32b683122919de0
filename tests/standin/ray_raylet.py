"""raylet: health service, parent of the actor processes, the memory monitor's log, its own deaths.

It leaves when GCS has been unreachable for RAY_gcs_rpc_server_reconnect_timeout_s, or when GCS
says that this node is dead. Its actors notice the end of their standard input.
"""

import os
import secrets
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import grpc

from standin import knobs, oom, proc, rpc, texts
from standin.logs import Log

GCS_GONE = (
    "GCS may have been killed. It's either GCS is terminated by `ray stop` or is killed unexpectedly. "
    "If it is killed unexpectedly, see the log file gcs_server.out. "
    "https://docs.ray.io/en/master/ray-observability/user-guides/"
    "configure-logging.html#logging-directory-structure. The program will terminate."
)
MARKED_DEAD = (
    "[Timeout] Exiting because this node manager has mistakenly been marked as dead by the GCS: GCS "
    "failed to check the health of this node for {count} times. This is likely because the machine or "
    "raylet has become overloaded."
)
ACTOR_DIED = (
    "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection "
    "error code 2. End of file. There are some potential root causes. (1) The process is killed by "
    "SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called. (3) The worker is "
    "crashed unexpectedly due to SIGSEGV or other unexpected errors."
)


class Raylet:
    """One node's raylet."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.knobs = knobs.read()
        self.log = Log(config["logs_dir"], "raylet")
        self.watch = oom.monitor(self.knobs.memory_total_bytes)
        self.gcs = rpc.Client(config["gcs"])
        self.node: dict[str, Any] = {}
        self.actors: dict[str, dict[str, Any]] = {}
        self.lock = threading.RLock()
        self.killed = 0
        self.crashed = 0

    def write(self, level: str, where: str, text: str) -> None:
        self.log.write(texts.ray_cpp("raylet", level, where, text), err=level in {"E", "C"})

    # -- start

    def describe(self, port: int) -> dict[str, Any]:
        """This node's entry of the node table."""
        config, sockets = self.config, str(Path(self.config["session_dir"], "sockets"))
        resources = {f"node:{config['address']}": 1.0, "memory": self.knobs.memory_total_bytes * 0.7}
        resources |= {"CPU": float(config["num_cpus"]), "object_store_memory": float(config["object_store"])}
        if config["num_gpus"]:
            resources["GPU"] = float(config["num_gpus"])
        if config["head"]:
            resources["node:__internal_head__"] = 1.0
        return {
            "node_id": config["node_id"],
            "address": config["address"],
            "port": port,
            "object_port": port + 1,
            "metrics_port": 0,
            "raylet_socket": str(Path(sockets, "raylet")),
            "store_socket": str(Path(sockets, "plasma_store")),
            "hostname": socket.gethostname(),
            "name": config["name"] or config["address"],
            "head": config["head"],
            "resources": resources,
            "temp_dir": config["temp_dir"],
            "session_dir": config["session_dir"],
        }

    def open(self) -> None:
        """Serve, write the opening lines, register."""
        self.write("I", "main.cc:711", f"Setting node ID node_id={self.config['node_id']}")
        store = self.config["object_store"] / 1e9
        self.write(
            "I", "store_runner.cc:50", f"Allowing the Plasma store to use up to {store:g}GB of memory."
        )
        where, text = oom.started_line(self.watch)
        self.write("I", where, text)
        self.write("I", "node_manager.cc:293", f"Initializing NodeManager node_id={self.config['node_id']}")
        bind = self.config["bind"]
        self.server, port = rpc.serve(
            f"{bind}:{self.config['port']}", {rpc.PRIVATE: rpc.json_method(self.private)}
        )
        self.write("I", "grpc_server.cc:144", f"NodeManager server started, listening on port {port}.")
        self.node = self.describe(port)
        self.gcs.call("register", node=self.node)
        text = f"Raylet of id, {self.node['node_id']} started. Raylet consists of node_manager and "
        text += "object_manager. "
        text += f"node_manager address: {self.node['address']}:{port} object_manager address: "
        text += f"{self.node['address']}:{port + 1} hostname: {self.node['hostname']}"
        self.write("I", "node_manager.cc:355", text)

    # -- actors

    def private(self, request: dict[str, Any]) -> Any:
        return getattr(self, "op_" + request.pop("op"))(**request)

    def op_spawn_actor(self, actor_id: str, spec: dict[str, Any]) -> dict[str, Any]:
        """Start one actor process, our child; its pid goes back to the driver."""
        environment = {**spec.pop("environment"), **os.environ}  # setdefault semantics, as vLLM's
        ours = {"node": self.config["address"], "node_id": self.node["node_id"], "ray": True}
        log = str(Path(self.config["logs_dir"], f"worker-{actor_id}.out"))
        with Path(log).open("ab") as file:
            child = proc.spawn(
                "worker",
                {**spec, **ours},
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                start_new_session=True,
            )
        ids = {"actor_id": actor_id, "lease_id": secrets.token_hex(32), "worker_id": secrets.token_hex(28)}
        actor = {**ids, "pid": child.pid, "name": spec["name"], "title": "ray::RayWorkerProc", "oom": ""}
        with self.lock:
            self.actors[actor_id] = actor
        threading.Thread(target=self._attend, args=(child, actor), daemon=True).start()
        return {"pid": child.pid, **ids}

    def _attend(self, child: subprocess.Popen[bytes], actor: dict[str, Any]) -> None:
        """Read one actor's requests, then its end."""
        assert child.stdout is not None
        for line in child.stdout:
            word, _, rest = line.decode().strip().partition(" ")
            if word == "oom":
                self.kill_for_memory(int(rest))
            elif word == "kill_gcs" and self.config["gcs_pid"]:
                proc.kill_quietly(self.config["gcs_pid"], signal.SIGKILL)
        code = child.wait()
        with self.lock:
            self.actors.pop(actor["actor_id"], None)
        if code != 0 and not actor["oom"]:
            self.crashed += 1
            text = f"Disconnecting worker, graceful=false, disconnect_type=2, worker_id={actor['worker_id']}"
            self.write("I", "node_manager.cc:1477", text)
        try:
            self.gcs.call("actor_exited", actor_id=actor["actor_id"], death=actor["oom"] or ACTOR_DIED)
        except grpc.RpcError:
            return  # GCS is gone: the patrol deals with it

    # -- memory

    def kill_for_memory(self, used: int) -> None:
        """Ray's memory monitor kills: report first, then SIGKILL to every actor of this node."""
        with self.lock:
            victims = [{**actor, "rss_bytes": self._resident(actor["pid"])} for actor in self.actors.values()]
            if not victims or not self.watch.on or used <= self.watch.threshold:
                return
            self.write("I", *oom.above_line(self.watch, used))
            report = oom.report(self.watch, used, self.node, victims)
            text = f"Killing {len(victims)} worker(s), kill details: {report}"
            self.write("I", "node_manager.cc:3199", text)
            for victim in victims:
                self.actors[victim["actor_id"]]["oom"] = (
                    f"{len(victims)} worker(s) were killed due to the node running low on memory. {report}"
                )
            self.killed += len(victims)
        for victim in victims:
            text = (
                f"DisconnectClient: sending SIGKILL to pgid={victim['pid']} worker_id={victim['worker_id']}"
            )
            self.write("I", "node_manager.cc:124", text)
            proc.kill_quietly(victim["pid"], signal.SIGKILL)
        threading.Timer(1.0 / self.knobs.speed, self._summarise).start()

    def _summarise(self) -> None:
        self.write("E", "node_manager.cc:3517", oom.summary(self.node, self.killed, self.crashed))
        self.killed = self.crashed = 0

    def _resident(self, pid: int) -> int:
        try:
            with Path(f"/proc/{pid}/statm").open(encoding="utf-8") as file:
                return int(file.read().split()[1]) * 4096
        except OSError:
            return 0

    # -- watching GCS

    def patrol(self) -> None:
        """Until GCS is gone too long or has declared us dead."""
        patience = knobs.ray_setting("gcs_rpc_server_reconnect_timeout_s", 60)
        seen = time.monotonic()
        while True:
            time.sleep(0.25)
            try:
                alive = self.gcs.call("node", timeout=2.0, node_id=self.node["node_id"])["alive"]
                seen = time.monotonic()
            except grpc.RpcError:
                alive = True
            if not alive:
                count = int(knobs.ray_setting("health_check_failure_threshold", 5))
                self.write("C", "node_manager.cc:971", MARKED_DEAD.format(count=count))
                os._exit(1)
            if time.monotonic() - seen > patience:
                self.write(
                    "E",
                    "rpc_client.h:204",
                    f"Failed to connect to GCS within {patience:g} seconds. {GCS_GONE}",
                )
                os._exit(1)

    def stop(self, *_: Any) -> None:
        """SIGTERM: tell GCS, take the actors along."""
        threading.Thread(target=self._stop, daemon=True).start()

    def _stop(self) -> None:
        self.write("I", "main.cc:352", "Raylet received SIGTERM, shutting down...")
        try:
            self.gcs.call(
                "unregister", timeout=1.0, node_id=self.config["node_id"], message="received SIGTERM"
            )
        except grpc.RpcError:
            self.write("W", "main.cc:371", "GCS is not reachable")
        with self.lock:
            pids = [actor["pid"] for actor in self.actors.values()]
        for pid in pids:
            proc.kill_quietly(pid, signal.SIGTERM)
        time.sleep(0.1)
        for pid in pids:
            proc.kill_quietly(pid, signal.SIGKILL)
        os._exit(0)


def run(config: dict[str, Any]) -> int:
    """The process."""
    proc.set_title(f"raylet --node_ip_address={config['address']} --gcs-address={config['gcs']}")
    proc.set_comm("raylet")
    raylet = Raylet(config)
    signal.signal(signal.SIGTERM, raylet.stop)
    raylet.open()
    os.write(1, b"ready\n")
    # `ray start` leaves a reaper behind: without it the raylet ends as if it were told to.
    proc.die_with_stdin(raylet._stop)
    raylet.patrol()
    return 0
