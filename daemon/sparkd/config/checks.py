"""What must hold between keys. Each check yields one line an error, with the numbers that do not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from sparkd.config.model import OFF, File, NodeSection
from sparkd.config.values import UnitBackend
from sparkd.core.member import LEAVING_PATIENCE_S
from sparkd.engines.environment import PER_NODE, PINNED
from sparkd.engines.model import Device
from sparkd.engines.ray import SOCKET_PATH_MAX, SOCKET_TAIL, TEMP_DIR_MAX
from sparkd.engines.vllm import OWN_OPTIONS
from sparkd.words import Backend, Phase, Role

NODES_MIN, NODES_MAX = 2, 8
UNIT_STOP_S = 90.0
"""TimeoutStopSec= of units/sparkd.service, sparkd-ray.service and sparkd-serve.service."""
KILL_S = 5.0
"""From SIGKILL to "it does not die", as the adapters wait."""
OPERATOR_SOCKET = "sparkd.sock"


def operator_socket(file: File) -> str:
    """Return where the daemon of this configuration listens for its operator."""
    return file.api.socket or f"{file.paths.run_dir}/{OPERATOR_SOCKET}"


def problems(file: File) -> list[str]:
    """Return every relation between keys that does not hold."""
    return [line for check in CHECKS for line in check(file)]


def _nodes(file: File) -> Iterator[str]:
    heads = [node.name for node in file.node if node.role is Role.HEAD]
    if len(heads) != 1:
        names = f" ({', '.join(heads)})" if heads else ""
        yield f'node: {len(heads)} nodes have role = "head"{names}; exactly one must have it'
    if not NODES_MIN <= len(file.node) <= NODES_MAX:
        yield f"node: {len(file.node)} nodes; {NODES_MIN} to {NODES_MAX} are allowed"
    for name in _repeated([node.name for node in file.node]):
        yield f"node: the name {name} is used more than once"


def _addresses(file: File) -> Iterator[str]:
    every = [address for node in file.node for address in _addresses_of(node)]
    for address in _repeated(every):
        yield f"node: the address {address} is used more than once"
    local = [node.name for node in file.node if node.address.startswith("127.")]
    if local and len(local) != len(file.node):
        yield (
            f"node: {', '.join(local)} has a loopback address and other nodes have not: they could not "
            f"reach it"
        )


def _addresses_of(node: NodeSection) -> list[str]:
    second = node.management_address
    return [node.address] if second is None else [node.address, second]


def _repeated(values: list[str]) -> list[str]:
    return [value for value, count in Counter(values).items() if count > 1]


def _sizes(file: File) -> Iterator[str]:
    engine = file.engine
    ranks = engine.tensor_parallel * engine.pipeline_parallel
    gpus = len(file.node) * engine.gpus_per_node
    if ranks != gpus:
        yield (
            f"engine.tensor_parallel: {engine.tensor_parallel} x engine.pipeline_parallel "
            f"{engine.pipeline_parallel} = {ranks} ranks, but {len(file.node)} nodes x engine.gpus_per_node "
            f"{engine.gpus_per_node} = {gpus}; both must be equal"
        )


def _ray(file: File) -> Iterator[str]:
    engine, ray = file.engine, file.engine.ray
    length = len(ray.temp_dir.encode())
    if length > TEMP_DIR_MAX:
        yield (
            f"engine.ray.temp_dir = {ray.temp_dir!r}: {length} bytes; at most {TEMP_DIR_MAX} leave room for "
            f"Ray's socket names ({len(SOCKET_TAIL)} bytes) within {SOCKET_PATH_MAX}"
        )
    if engine.backend is not Backend.RAY:
        return
    if engine.device is Device.CPU and ray.num_gpus is None:
        yield 'engine.ray.num_gpus: must be given with engine.device = "cpu": Ray detects no GPUs there'
    if ray.num_gpus is not None and ray.num_gpus < engine.gpus_per_node:
        yield f"engine.ray.num_gpus = {ray.num_gpus}: below engine.gpus_per_node = {engine.gpus_per_node}"


def _ports(file: File) -> Iterator[str]:
    ports = {
        "engine.vllm.api_port": file.engine.vllm.api_port,
        "api.port": file.api.port,
        "api.peer_port": file.api.peer_port,
    }
    if file.engine.backend is Backend.RAY:
        ports["engine.ray.port"] = file.engine.ray.port
    else:
        ports["engine.vllm.master_port"] = file.engine.vllm.master_port
    if not file.broker.host:
        ports["broker.port"] = file.broker.port
    for port, count in Counter(ports.values()).items():
        if count > 1:
            keys = " and ".join(key for key, value in ports.items() if value == port)
            yield f"{keys}: both are {port}; on the head each needs its own port"


def _paths(file: File) -> Iterator[str]:
    socket = operator_socket(file)
    if len(socket.encode()) > SOCKET_PATH_MAX:
        yield f"api.socket = {socket!r}: {len(socket.encode())} bytes; at most {SOCKET_PATH_MAX} are allowed"


def _environments(file: File) -> Iterator[str]:
    for name in file.engine.env:
        instead = PINNED.get(name) or PER_NODE.get(name)
        if instead:
            yield f"engine.env.{name}: is decided by {instead}"
    for index, node in enumerate(file.node):
        for name in node.env:
            if name in PINNED:
                yield f"node[{index}].env.{name}: is decided by {PINNED[name]}"


def _arguments(file: File) -> Iterator[str]:
    vllm, ray = file.engine.vllm.extra_args, file.engine.ray.extra_args
    for argument in vllm:
        option = argument.partition("=")[0].replace("_", "-")
        if option in OWN_OPTIONS:
            yield f"engine.vllm.extra_args: {argument!r} is decided by {OWN_OPTIONS[option]}"
    for key, arguments in (("engine.vllm.extra_args", vllm), ("engine.ray.extra_args", ray)):
        if arguments and not arguments[0].startswith("-"):
            yield f"{key}: begins with {arguments[0]!r}; the first must be an option"


def _floors(file: File) -> Iterator[str]:
    for name in type(file.floors).model_fields:
        asked, floor = getattr(file.settings, name, None), getattr(file.floors, name)
        if asked is not None and asked < floor:
            yield f"settings.{name} = {asked}: below floors.{name} = {floor}"
    tokens, seqs = file.settings.max_num_batched_tokens, file.settings.max_num_seqs
    # vLLM refuses it (config/scheduler.py).
    if tokens is not None and seqs is not None and tokens < seqs:
        yield f"settings.max_num_batched_tokens = {tokens}: below settings.max_num_seqs = {seqs}"


def _broker(file: File) -> Iterator[str]:
    broker = file.broker
    if not broker.host and (broker.tls or broker.ca_file or broker.cert_file):
        yield "broker.tls: the embedded broker speaks no TLS; set broker.host to a broker that does"
    if (broker.cert_file is None) != (broker.key_file is None):
        yield "broker.cert_file, broker.key_file: must be given together"
    if (broker.ca_file or broker.cert_file) and not broker.tls:
        yield "broker.ca_file, broker.cert_file: have no effect without broker.tls = true"


def _shorter(short: tuple[str, float], long: tuple[str, float], why: str) -> Iterator[str]:
    if short[1] >= long[1]:
        yield f"{short[0]} = {short[1]:g} s: must be below {long[0]} = {long[1]:g} s: {why}"


def _hang_order(file: File) -> Iterator[str]:
    """Who notices that nothing comes any more: the canary, Ray, sparkd, and only then vLLM itself."""
    times, ray, vllm = file.timeouts, file.engine.ray, file.engine.vllm
    limit = ("timeouts.no_progress_s", times.no_progress_s)
    yield from _shorter(("timeouts.verify_deadline_s", times.verify_deadline_s), limit, "it is one request")
    yield from _shorter(
        ("timeouts.canary_idle_s", times.canary_idle_s), limit, "an idle engine is asked first"
    )
    execute = ("engine.vllm.execute_timeout_s", float(vllm.execute_timeout_s))
    yield from _shorter(limit, execute, "sparkd must see a hang before vLLM ends itself")
    if file.engine.backend is Backend.RAY:
        name = "engine.ray.health_failures x (health_period_ms + health_timeout_ms)"
        dead_s = ray.health_failures * (ray.health_period_ms + ray.health_timeout_ms) / 1000
        yield from _shorter((name, dead_s), limit, "Ray must say which node died before it counts as a hang")


def _silence_order(file: File) -> Iterator[str]:
    """A silence is longer than one lost answer; a wait grows from its least to its most."""
    times, recovery = file.timeouts, file.recovery
    load_s: float = getattr(times.phase_budget_s, Phase.LOADING_WEIGHTS.value)
    for short, long, why in (
        ("timeouts.membership_every_s", "timeouts.membership_silence_s", "one lost answer is no silence"),
        ("timeouts.status_every_s", "timeouts.peer_silence_s", "one lost status is no silence"),
        ("recovery.backoff_base_s", "recovery.backoff_max_s", "the wait grows from one to the other"),
    ):
        values = {f"timeouts.{k}": v for k, v in times} | {f"recovery.{k}": v for k, v in recovery}
        yield from _shorter((short, values[short]), (long, values[long]), why)
    budget = ("timeouts.phase_budget_s.loading_weights", load_s)
    yield from _shorter(("timeouts.stall_s", times.stall_s), budget, "a stall is noticed within the load")


CHECKS: tuple[Callable[[File], Iterator[str]], ...] = (
    _nodes,
    _addresses,
    _sizes,
    _ray,
    _ports,
    _paths,
    _environments,
    _arguments,
    _floors,
    _broker,
    _hang_order,
    _silence_order,
)


def notes(file: File) -> tuple[str, ...]:
    """Return what is no error but must be said."""
    said = []
    if file.settings.ray_memory_threshold == OFF:
        said.append(
            'settings.ray_memory_threshold = "off": only while the memory guard of every node is observed '
            "enforcing; until then Ray's monitor stays on, at its highest threshold"
        )
    if file.broker.host and not file.broker.tls and file.broker.password is not None:
        said.append("broker.tls = false: the broker's password crosses the network in clear")
    most_s = leaving_s(file.timeouts.stop_grace_s)
    if most_s >= UNIT_STOP_S and file.units.backend is not UnitBackend.CHILDREN:
        said.append(
            f"timeouts.stop_grace_s = {file.timeouts.stop_grace_s:g} s: a node that leaves takes up to "
            f"{most_s:g} s, and systemd ends sparkd and its units after TimeoutStopSec={UNIT_STOP_S:g}: "
            "raise that of sparkd.service, sparkd-ray.service and sparkd-serve.service, too (systemctl edit)"
        )
    return tuple(said)


def leaving_s(grace_s: float) -> float:
    """Return how long an orderly end of a node may take: the cluster, then this node, then SIGKILL."""
    return 3 * grace_s + LEAVING_PATIENCE_S + KILL_S
