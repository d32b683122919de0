"""What people are told of the surroundings: each change once, and why."""

from __future__ import annotations

from sim.world import Sim, World, serving
from sparkd.core import events as ev
from sparkd.core.messages import MemberStatus
from sparkd.core.records import DURABLE, PeerChanged, Record, SessionChanged


def told(node: Sim, kind: type[Record]) -> list[Record]:
    return [record for record in node.records if isinstance(record, kind)]


def started() -> World:
    world = World()
    world.run_until(serving(world))
    return world


def test_a_start_tells_the_session_and_each_peer_once_on_every_node() -> None:
    world = started()
    world.run_for(60)

    for name, other in (("spark-a", "spark-b"), ("spark-b", "spark-a")):
        node = world.nodes[name]
        assert told(node, SessionChanged) == [SessionChanged(True, "connected")]
        assert told(node, PeerChanged) == [PeerChanged(other, True, "heard through the broker")]


def test_a_peer_that_falls_silent_and_comes_back_is_told_twice() -> None:
    world = started()
    worker = world.nodes["spark-b"]

    worker.up = False
    world.run_for(60)
    *_, gone = told(world.head, PeerChanged)
    assert gone == PeerChanged("spark-b", False, "nothing heard through the broker for 10 s")

    worker.up = True
    world.tell(worker, ev.TimerFired())
    world.run_for(10)
    *_, back = told(world.head, PeerChanged)
    assert (back.present, len(told(world.head, PeerChanged))) == (True, 3)


def test_a_peer_that_never_comes_is_told_after_the_usual_silence() -> None:
    """On a worker nothing else says that its head is not there."""
    world = World()
    world.head.up = False

    world.run_for(9)
    assert not told(world.nodes["spark-b"], PeerChanged)
    world.run_for(60)
    assert told(world.nodes["spark-b"], PeerChanged) == [
        PeerChanged("spark-a", False, "never heard since this daemon's start")
    ]


def test_a_new_daemon_of_a_peer_is_there_in_the_end() -> None:
    world = started()

    world.restart_daemon("spark-b")
    world.run_for(30)

    assert told(world.head, PeerChanged)[-1].present


def test_a_peer_that_does_not_hear_this_node_is_no_peer_that_is_there() -> None:
    world = World()
    world.nodes["spark-b"].up = False
    status = MemberStatus("spark-b", "deaf")

    for _ in range(20):
        world.run_for(1)
        world.tell(world.head, ev.StatusReceived(status, ev.Path.MQTT))

    assert told(world.head, PeerChanged) == [
        PeerChanged("spark-b", False, "it is heard, but has not heard this daemon")
    ]


def test_a_peer_that_left_is_told_as_such() -> None:
    world = started()

    world.tell(world.nodes["spark-b"], ev.OperatorAsked(ev.Verb.SHUTDOWN))
    world.run_for(60)

    assert told(world.head, PeerChanged)[-1] == PeerChanged("spark-b", False, "its sparkd has left")


def test_the_session_is_told_with_its_reason_and_explains_the_silence_of_peers() -> None:
    world = started()

    world.set_broker(up=False)
    world.run_for(60)
    assert told(world.head, SessionChanged)[1:] == [SessionChanged(False, "connection refused")]
    *_, gone = told(world.head, PeerChanged)
    assert (gone.present, gone.reason) == (
        False,
        "nothing heard through the broker for 10 s, the session with it is gone",
    )

    world.set_broker(up=True)
    world.run_for(10)
    assert told(world.head, SessionChanged)[2:] == [SessionChanged(True, "connected")]
    assert told(world.head, PeerChanged)[-1].present


def test_the_same_news_again_is_none() -> None:
    world = started()
    before = len(world.head.records)

    for reason in ("a", "b", "b"):
        world.tell(world.head, ev.BrokerChanged(False, reason))
    for _ in range(3):
        world.tell(world.head, ev.BrokerChanged(True))

    new = [r for r in world.head.records[before:] if isinstance(r, SessionChanged)]
    assert new == [SessionChanged(False, "a"), SessionChanged(True, "connected")]


def test_no_session_before_the_first_try_is_nothing_to_tell() -> None:
    world = World()
    world.broker = False

    world.run_for(5)
    assert not told(world.head, SessionChanged)
    world.set_broker(up=False)
    assert told(world.head, SessionChanged) == [SessionChanged(False, "connection refused")]


def test_they_are_for_people_and_not_durable() -> None:
    assert not {PeerChanged, SessionChanged} & set(DURABLE)


def test_people_are_told_of_every_turn_of_an_incident() -> None:
    world = World()
    world.run_until(serving(world))
    world.signal("spark-a", "nccl_timeout")
    world.run_until(serving(world))

    said = [(n.incident, n.state, n.cause, n.generation) for n in world.notices]
    assert said == [
        (1, "open", "", 1),
        (1, "remedied", "nccl_timeout", 1),
        (1, "recovered", "nccl_timeout", 2),
    ]
    assert world.notices[1].action.startswith("relaunch: ")
