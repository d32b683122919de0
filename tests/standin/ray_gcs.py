"""gcs_server: the node table over gRPC, health checks of raylets, placement of actors.

A node whose raylet refuses is dead after threshold x period, one that is silent after threshold x
(timeout + period), with the RAY_health_check_* settings of this process's environment. Dead nodes
stay listed. Actors are placed one a GPU, the driver's node first.
"""

import os
import signal
import threading
import time
from typing import Any

import grpc

from standin import knobs, proc, proto, rpc, texts
from standin.logs import Log

HEARTBEATS = "health check failed due to missing too many heartbeats"


def _setting(name: str, default: int) -> float:
    return knobs.ray_setting(name, default) / 1000


class Gcs:
    """The tables and the checks. One lock: every answer is a consistent picture."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.knobs = knobs.read()
        self.log = Log(config["logs_dir"], "gcs_server")
        self.session = config["session"]
        self.temp_dir = config["temp_dir"]
        self.nodes: dict[str, dict[str, Any]] = {}
        self.actors: dict[str, dict[str, Any]] = {}
        self.raylets: dict[str, rpc.Client] = {}
        self.lock = threading.RLock()

    def write(self, level: str, where: str, text: str) -> None:
        self.log.write(texts.ray_cpp("gcs_server", level, where, text))

    # -- what Ray's own clients ask

    def all_nodes(self, _request: bytes) -> bytes:
        with self.lock:
            nodes = sorted(self.nodes.values(), key=lambda node: not node["alive"])
            return proto.all_nodes_reply(nodes)

    def check_alive(self, request: bytes) -> bytes:
        asked = [
            value.hex() for number, value in proto.fields(request) if number == 1 and isinstance(value, bytes)
        ]
        with self.lock:
            alive = [bool(self.nodes.get(node_id, {}).get("alive")) for node_id in asked]
        return proto.check_alive_reply(self.knobs.ray_version, alive)

    # -- what the stand-in's own programs ask

    def private(self, request: dict[str, Any]) -> Any:
        return getattr(self, "op_" + request.pop("op"))(**request)

    def op_hello(self) -> dict[str, Any]:
        return {"version": self.knobs.ray_version, "session": self.session, "temp_dir": self.temp_dir}

    def op_register(self, node: dict[str, Any]) -> bool:
        node = {**node, "alive": True, "death": None, "start_ms": int(time.time() * 1000), "end_ms": 0}
        with self.lock:
            self.nodes[node["node_id"]] = node
            self.raylets[node["node_id"]] = rpc.Client(f"{node['address']}:{node['port']}")
        ids = f"node_id={node['node_id']} node_name={node['name']}"
        self.write("I", "gcs_node_manager.cc:104", f"Registering new node. {ids}")
        threading.Thread(target=self._watch, args=(node,), daemon=True).start()
        return True

    def op_unregister(self, node_id: str, message: str) -> bool:
        self._mark_dead(node_id, "EXPECTED_TERMINATION", message)
        return True

    def op_node(self, node_id: str) -> dict[str, Any]:
        """Whether a node still counts as alive; raylets and drivers ask."""
        with self.lock:
            return {"alive": bool(self.nodes.get(node_id, {}).get("alive"))}

    def op_place(self, count: int, driver: str) -> list[dict[str, Any]]:
        """`count` nodes with a free GPU, the driver's first; an empty list while there are too few."""
        with self.lock:
            alive = [node for node in self.nodes.values() if node["alive"]]
            alive.sort(key=lambda node: (node["address"] != driver, not node["head"]))
            slots = [
                node for node in alive for _ in range(int(node["resources"].get("GPU", 0)) - self._used(node))
            ]
            return slots[:count] if len(slots) >= count else []

    def _used(self, node: dict[str, Any]) -> int:
        return sum(
            1 for actor in self.actors.values() if actor["alive"] and actor["node_id"] == node["node_id"]
        )

    def op_create_actor(self, actor_id: str, node_id: str, spec: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            raylet = self.raylets[node_id]
            self.actors[actor_id] = {"alive": True, "node_id": node_id, "death": ""}
        reply = raylet.call("spawn_actor", actor_id=actor_id, spec=spec)
        self.write("I", "gcs_actor_manager.cc:1621", f"Actor created successfully actor_id={actor_id}")
        return reply

    def op_actor_exited(self, actor_id: str, death: str) -> bool:
        with self.lock:
            self.actors[actor_id].update(alive=False, death=death)
        self.write("I", "gcs_actor_manager.cc:1421", f"Actor is failed on worker, actor_id={actor_id}")
        return True

    def op_actor(self, actor_id: str) -> dict[str, Any]:
        with self.lock:
            return dict(self.actors.get(actor_id) or {"alive": False, "death": ""})

    # -- health

    def _watch(self, node: dict[str, Any]) -> None:
        """Check one raylet until it is dead."""
        period, timeout = _setting("health_check_period_ms", 3000), _setting("health_check_timeout_ms", 10000)
        threshold = int(knobs.ray_setting("health_check_failure_threshold", 5))
        time.sleep(_setting("health_check_initial_delay_ms", 5000))
        client, left = self.raylets[node["node_id"]], threshold
        while node["alive"] and left > 0:
            began = time.monotonic()
            if (error := self._check(client, timeout)) is None:
                left = threshold
                time.sleep(period)
                continue
            left -= 1
            self._say_failed(node, left, error)
            # A silent raylet has used up its timeout; the period follows either way.
            time.sleep(period if left else 0)
            if left == 0 and time.monotonic() - began < period:
                time.sleep(period)
        if node["alive"]:
            self._say_dead(node)
            self._mark_dead(node["node_id"], "UNEXPECTED_TERMINATION", HEARTBEATS)

    def _check(self, client: rpc.Client, timeout: float) -> Any:
        try:
            client.raw(rpc.HEALTH, timeout=timeout)
        except grpc.RpcError as error:
            return error
        return None

    def _say_failed(self, node: dict[str, Any], left: int, error: Any) -> None:
        code = error.code().value[0]
        text = f"Health check failed for node {node['node_id']}, remaining checks {left}, status {code}, "
        text += f"response status 0, status message {error.details()}, status details "
        self.write("W", "gcs_health_check_manager.cc:209", text)

    def _say_dead(self, node: dict[str, Any]) -> None:
        text = f"Node is dead because the health check failed. node_id={node['node_id']}"
        self.write("W", "gcs_health_check_manager.cc:88", text)

    def _mark_dead(self, node_id: str, reason: str, message: str) -> None:
        with self.lock:
            node = self.nodes.get(node_id)
            if node is None or not node["alive"]:
                return
            node.update(alive=False, death=[reason, message], end_ms=int(time.time() * 1000))
            for actor in self.actors.values():
                if actor["node_id"] == node_id:
                    actor.update(alive=False)
        ids = f"node_id={node_id} node_name={node['name']}"
        text = f", death reason = {reason}, death message = {message} {ids}"
        self.write("I", "gcs_node_manager.cc:734", text)
        if reason == "UNEXPECTED_TERMINATION":
            text = f"The node with node id: {node_id} and address: {node['address']} and node name: "
            text += f"{node['name']}"
            text += (
                " has been marked dead because the detector has missed too many heartbeats from it. This can"
            )
            text += " happen when a \t(1) raylet crashes unexpectedly (OOM, etc.) "
            text += "\n\t(2) raylet has lagging heartbeats due to slow network or busy workload."
            self.write("W", "gcs_node_manager.cc:761", text)


def run(config: dict[str, Any]) -> int:
    """The process: serve until SIGTERM or until `ray start` is gone."""
    proc.set_title("gcs_server --log_dir=" + config["logs_dir"])
    proc.set_comm("gcs_server")
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    gcs = Gcs(config)
    version = gcs.knobs.ray_version
    gcs.write("I", "gcs_server_main.cc:98", f"Ray cluster metadata ray_version={version} ray_commit=standin")
    methods = {
        rpc.NODE_INFO + "GetAllNodeInfo": gcs.all_nodes,
        rpc.NODE_INFO + "CheckAlive": gcs.check_alive,
        rpc.PRIVATE: rpc.json_method(gcs.private),
    }
    try:
        server, port = rpc.serve(config["address"], methods)
    except OSError:
        where = f"Failed to bind {config['address']}: Address already in use"
        gcs.write("C", "grpc_server.cc:144", where)
        return 1
    gcs.write("I", "grpc_server.cc:144", f"GcsServer server started, listening on port {port}.")
    os.write(1, f"{port}\n".encode())
    proc.die_with_stdin()
    server.wait_for_termination()
    return 0
