"""Literal states of one head: what it looks like while it loads, fails, waits and serves."""

from __future__ import annotations

from dataclasses import replace

from sparkd.core.events import EngineObserved, MembershipObserved, PhaseSeen, RayNode
from sparkd.core.messages import MemberStatus, Telemetry, UnitState, UnitStatus
from sparkd.core.policy import Policy
from sparkd.core.records import MessageDropped
from sparkd.core.state import Coordinator, Incident, Member, Peer, State, Unit, Watch
from sparkd.signals.model import MemorySample
from sparkd.words import GIB, EngineMemory, Phase, Stamp, UnitName
from store.lives import ASKED, DIAGNOSIS, LOWERED, life

NOW = 1000.0
POLICY = Policy(
    node="spark-a",
    head="spark-a",
    nodes=(("spark-a", "192.168.200.12"), ("spark-b", "192.168.200.13")),
    settings=ASKED,
)
UNITS = (
    Unit(UnitName.RAY, 14, UnitState.RUNNING, 10.0, pid=1),
    Unit(UnitName.SERVE, 14, UnitState.RUNNING, 11.0, pid=2),
)
PEER = Peer(
    node="spark-b",
    status=MemberStatus("spark-b", "bbbb", units=(UnitStatus(UnitName.RAY, 14, UnitState.RUNNING),)),
    heard_at_s=NOW - 1,
    mqtt_at_s=NOW - 1,
    fresh=True,
    telemetry=Telemetry("spark-b", "bbbb", Phase.SERVING, 14, int(7.6 * GIB), int(119.7 * GIB), 0.0),
)
RAY_NODES = (RayNode("192.168.200.12", True, True, "n1"), RayNode("192.168.200.13", True, False, "n2"))
SERVING_WATCH = Watch(
    said=EngineMemory(kv_cache_bytes=LOWERED.kv_cache_bytes),
    rate_tok_s=27.1,
    membership=MembershipObserved(14, RAY_NODES),
    engine=EngineObserved(14, True, True, 3, 0, 5000.0),
    tokens_total=5000.0,
    canary_ok=True,
    canary_latency_s=0.412,
)
INCIDENT = Incident(
    7, NOW - 4.0, failures=1, causes=("ray_oom_kill",), diagnosis=DIAGNOSIS, remedy="KV cache 49.1 → 44.6 GiB"
)


def head(phase, *, watch=None, since_s=0.0, generation=14, **lead):
    """Return the state of a head in *phase*, entered at *since_s*."""
    return State(
        node="spark-a",
        instance="aaaa",
        member=Member(
            units=UNITS,
            memory=MemorySample(NOW, int(6.2 * GIB), int(119.7 * GIB), 0, 0.0),
        ),
        peers=(PEER,),
        coordinator=Coordinator(
            generation=generation,
            phase=phase,
            phase_since_s=since_s,
            settings=lead.pop("settings", ASKED),
            watch=watch or Watch(),
            **lead,
        ),
        seen=Stamp(3, generation),
        broker=True,
    )


def loading(done=8, total=39, *, since_s=NOW - 150.0, moved_s=NOW - 6.0):
    """Return a head that loads weights."""
    seen = PhaseSeen(14, Phase.LOADING_WEIGHTS, done, total)
    return head(Phase.LOADING_WEIGHTS, watch=Watch(progress=seen, progress_at_s=moved_s), since_s=since_s)


def serving():
    """Return a head that serves with settings that were learned."""
    return head(Phase.SERVING, watch=SERVING_WATCH, since_s=NOW - 22_320.0, settings=LOWERED)


def backing_off():
    """Return a head between failure and relaunch."""
    return head(
        Phase.BACKING_OFF, since_s=NOW - 2.0, settings=LOWERED, incident=INCIDENT, backoff_until_s=NOW + 8.0
    )


def escalated():
    """Return a head that gave up."""
    return head(Phase.ESCALATED, since_s=NOW - 60.0, needs="reboot spark-b, then sparkctl resume")


def waiting():
    """Return a head whose peer is not there."""
    state = head(Phase.WAITING, waiting=("spark-b: its sparkd is not heard",))
    return replace(state, peers=(Peer("spark-b"),), broker=False)


def worker():
    """Return a worker that has heard nothing yet."""
    return State(node="spark-b", instance="bbbb", member=Member(), peers=(Peer("spark-a"),))


def whole_life():
    """Return (state, records) of the steps of one life: load, fail, recover, serve on."""
    opened, remedied, stamped, closed = life()
    steps = [(loading(done), []) for done in (1, 8, 20, 39)]
    steps += [
        (head(Phase.CAPTURING_GRAPHS, since_s=NOW - 31.0, generation=13), []),
        (head(Phase.FAILING, since_s=NOW, generation=13, incident=INCIDENT), opened),
        (backing_off(), remedied),
        (
            head(Phase.FENCING, generation=13, incident=INCIDENT),
            [MessageDropped("status", "replay", "spark-b")],
        ),
        (loading(20), [*stamped, MessageDropped("status", "replay", "spark-b")]),
        (serving(), closed),
    ]
    for tokens in (5200.0, 5400.0, 5600.0):
        watch = replace(SERVING_WATCH, tokens_total=tokens)
        steps.append((head(Phase.SERVING, watch=watch, since_s=NOW - 5.0, settings=LOWERED), []))
    return steps
