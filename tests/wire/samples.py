"""One of each message, and strategies that make any that is within its bounds."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from sparkd.core.messages import (
    Echo,
    GuardSeen,
    IncidentNotice,
    Intent,
    MemberStatus,
    Report,
    Telemetry,
    UnitState,
    UnitStatus,
)
from sparkd.signals.model import Proof, Quantity, Signal
from sparkd.wire.codec import Decoder, Encoder, Message
from sparkd.wire.envelope import mac
from sparkd.wire.shapes import Will
from sparkd.words import CudaGraph, LoadFormat, Phase, Settings, Stamp, UnitName

KEY = b"an example of a cluster key, 32+"
CLUSTER = "lab"
NODES = ("spark-1", "spark-2")
HEAD, WORKER = NODES
INSTANCE = "0123456789abcdef"
NOW = 5000.0

STATUS = MemberStatus(
    WORKER,
    INSTANCE,
    seen=Stamp(3, 7),
    heard=((HEAD, "feed"),),
    intent_seq=12,
    intent_coordinator="feed",
    units=(
        UnitStatus(UnitName.RAY, 7, UnitState.RUNNING),
        UnitStatus(UnitName.SERVE, 7, UnitState.EXITED, signal=9, reason="killed"),
    ),
    swept=True,
    emptied_generation=6,
    report_seq=40,
    shared_digest="ab" * 32,
    ready=False,
    not_ready="the model's files are growing",
    available_bytes=1 << 36,
    total_bytes=1 << 37,
    pressure_percent=0.25,
    version="0.1.0",
)
INTENT = Intent(
    Stamp(3, 7),
    5,
    "feed",
    HEAD,
    addressees=((HEAD, "feed"), (WORKER, INSTANCE)),
    wanted=((HEAD, (UnitName.RAY, UnitName.SERVE)), (WORKER, (UnitName.RAY,))),
    settings=Settings(ray_memory_threshold=None, kv_cache_bytes=1 << 33),
    shared_digest="ab" * 32,
    node_digests=((HEAD, "cd" * 32), (WORKER, "ef" * 32)),
    phase=Phase.LOADING_WEIGHTS,
)
SIGNAL = Signal(
    "ray_kill_details",
    "ray_oom_kill",
    Proof.PROVES,
    WORKER,
    "raylet.out",
    "Memory on the node was 113.78GB / 119.70GB (0.950539)",
    at_s=NOW - 3.0,
    generation=7,
    fatal=True,
    rank=1,
    phase=Phase.CAPTURING_GRAPHS,
    printed="12:00:01",
    quantities=(Quantity("used_bytes", 113.78 * (1 << 30)),),
)
REPORT = Report(WORKER, INSTANCE, 1, (SIGNAL, replace(SIGNAL, rank=None, quantities=())), NOW, NOW)
TELEMETRY = Telemetry(WORKER, INSTANCE, Phase.SERVING, 7, 1 << 36, 1 << 37, 0.5, 3, 17)
WILL = Will(WORKER, INSTANCE, 4)
MESSAGES: tuple[Message, ...] = (STATUS, INTENT, REPORT, TELEMETRY, WILL)


def instance_of(message: Message) -> str:
    return message.coordinator if isinstance(message, Intent) else message.instance


def encoder_of(message: Message, *, key: bytes = KEY, cluster: str = CLUSTER) -> Encoder:
    return Encoder(key, cluster, message.node, instance_of(message))


def decoder(*, key: bytes = KEY, cluster: str = CLUSTER, nodes: tuple[str, ...] = NODES) -> Decoder:
    return Decoder(key, cluster, nodes)


def forged(topic: str, payload: bytes, *, key: bytes = KEY, major: bytes = b"1") -> bytes:
    """Return *payload* under a right MAC: what a daemon with the key, but of a wrong mind, could say."""
    return b"sparkd/%s %s\n%s" % (major, mac(key, topic, payload).encode(), payload)


names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True)
instances = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
counts = st.integers(0, (1 << 53) - 1)
digests = st.from_regex(r"[0-9a-f]{0,64}", fullmatch=True)
stamps = st.builds(Stamp, counts, counts)
clean = st.characters(exclude_categories=("Cc", "Cs"))
sentences = st.none() | st.text(clean, max_size=500)
labels = st.text(clean, max_size=64)
sizes = st.none() | st.integers(0, 1 << 50)
percents = st.none() | st.floats(0, 100)
tokens = st.none() | st.integers(1, 1 << 31)
shares = st.floats(0, 1)
clocks = st.floats(0, 1e10)
units = st.sampled_from(UnitName)
phases = st.sampled_from(Phase)


def tuples(inner: st.SearchStrategy, most: int) -> st.SearchStrategy:
    return st.lists(inner, max_size=most).map(tuple)


settings = st.builds(
    Settings,
    ray_memory_threshold=st.none() | shares,
    gpu_memory_utilization=shares,
    kv_cache_bytes=sizes,
    max_num_batched_tokens=tokens,
    max_num_seqs=tokens,
    cudagraph=st.sampled_from(CudaGraph),
    max_model_len=tokens,
    load_format=st.sampled_from(LoadFormat),
)
unit_statuses = st.builds(
    UnitStatus,
    unit=units,
    generation=counts,
    state=st.sampled_from(UnitState),
    code=st.none() | st.integers(-(1 << 31), (1 << 32) - 1),
    signal=st.none() | st.integers(0, 255),
    ordered=st.booleans(),
    reason=sentences,
    by_hand=st.booleans(),
)
statuses = st.builds(
    MemberStatus,
    node=st.sampled_from(NODES),
    instance=instances,
    seen=stamps,
    heard=tuples(st.tuples(names, instances), 4),
    intent_seq=counts,
    intent_coordinator=st.just("") | instances,
    refused=sentences,
    units=tuples(unit_statuses, 3),
    swept=st.booleans(),
    emptied_generation=counts,
    fenced_generation=counts,
    drained_generation=counts,
    report_seq=counts,
    shared_digest=digests,
    node_digest=digests,
    ready=st.none() | st.booleans(),
    not_ready=sentences,
    leaving=st.booleans(),
    unclean_generation=counts,
    unreleased_generation=counts,
    leaking=st.booleans(),
    available_bytes=sizes,
    total_bytes=sizes,
    baseline_bytes=sizes,
    lowest_bytes=sizes,
    pressure_percent=percents,
    guard=st.none()
    | st.builds(
        GuardSeen,
        alive=st.booleans(),
        enforcing=st.booleans(),
        floor_bytes=sizes,
        leased=st.booleans(),
        trips=counts,
        notes=tuples(st.text(clean, max_size=300), 3),
        rivals=tuples(st.text(clean, max_size=300), 2),
        reason=st.text(clean, max_size=300),
    ),
    version=labels,
)
intents = st.builds(
    Intent,
    stamp=stamps,
    seq=counts,
    coordinator=instances,
    node=st.sampled_from(NODES),
    addressees=tuples(st.tuples(names, instances), 4),
    wanted=tuples(st.tuples(names, tuples(units, 2)), 4),
    settings=settings,
    shared_digest=digests,
    node_digests=tuples(st.tuples(names, digests), 4),
    phase=phases,
    grace_s=st.floats(0, 3600),
)
telemetries = st.builds(
    Telemetry,
    node=st.sampled_from(NODES),
    instance=instances,
    phase=phases,
    generation=counts,
    available_bytes=sizes,
    total_bytes=sizes,
    pressure_percent=percents,
    done=st.none() | counts,
    total=st.none() | counts,
    floor_bytes=sizes,
    guarded=st.booleans(),
    sent_s=st.none() | clocks,
    echoes=tuples(st.builds(Echo, instances, clocks, clocks), 3),
)
notices = st.builds(
    IncidentNotice,
    node=st.sampled_from(NODES),
    instance=instances,
    incident=counts,
    generation=counts,
    state=labels,
    cause=labels,
    text=st.text(max_size=200),
    action=st.text(max_size=200),
    needs=st.text(max_size=200),
)
wills = st.builds(Will, st.sampled_from(NODES), instances, st.integers(1, (1 << 53) - 1))

# Anything that reading a log can make of it: odd characters, any length, numbers that are none.
odd_signals = st.builds(
    Signal,
    id=st.text(max_size=80),
    cause=st.text(max_size=80),
    proof=st.sampled_from(Proof),
    node=st.text(max_size=80),
    source=st.text(max_size=300),
    quote=st.text(max_size=1500),
    at_s=st.floats(),
    generation=st.integers(),
    fatal=st.booleans(),
    rank=st.none() | st.integers(),
    phase=st.none() | phases,
    printed=st.none() | st.text(max_size=80),
    reader=st.text(max_size=80),
    quantities=tuples(st.builds(Quantity, st.text(max_size=80), st.floats()), 3),
)
