"""A worker whose head is gone: what it takes for a silence, event by event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.given import HEAD, NOW, RAY, WORKER, intent_of, unit, worker_state
from sim.world import make_policy
from sparkd.core import events as ev
from sparkd.core.commands import StopUnit
from sparkd.core.evolve import evolve
from sparkd.core.messages import Telemetry
from sparkd.core.state import State
from sparkd.core.step import step
from sparkd.words import Phase

POLICY = make_policy(WORKER)
EVERY_S = 2.0


def running() -> State:
    """Return a worker with its part, that has heard its head until now."""
    state = worker_state(intent=intent_of(wanted=((HEAD, (RAY,)), (WORKER, (RAY,)))), units=(unit(RAY),))
    return replace(state, wakes=(NOW + 1.0,) * 4)


def silent(received_bytes: int | None = 0, host: ev.Host = ev.Host.SILENT) -> ev.PeerProbed:
    return ev.PeerProbed(HEAD, reached=False, reason="timed out", host=host, received_bytes=received_bytes)


def told(state: State, event: ev.Event, now: float) -> tuple[State, bool]:
    """Return the state after the event, and whether an end was ordered."""
    done = step(state, (event,), now, POLICY)
    return done.state, any(isinstance(command, StopUnit) for command in done.commands)


def probed(state: State, now: float, seconds: float) -> tuple[State, float, bool]:
    """Let every probe for so long find the head silent, until the part is ended."""
    until_s = now + seconds
    while now < until_s:
        state, ended = told(state, silent(), now)
        if ended:
            return state, now, True
        now += EVERY_S
    return state, now, False


def test_a_part_is_ended_by_the_answer_that_completes_the_silence() -> None:
    _, now, ended = probed(running(), NOW, 10 * POLICY.no_progress_s)

    assert ended
    # One count to compare with, then the silence itself.
    assert now - NOW == pytest.approx(POLICY.no_progress_s + EVERY_S)


def test_time_alone_ends_no_part() -> None:
    state, now, _ = probed(running(), NOW, POLICY.no_progress_s - 10.0)

    state, ended = told(state, ev.TimerFired(), now + 1000.0)

    assert not ended


def test_a_silence_with_a_hole_begins_anew_however_little_was_received_in_it() -> None:
    """The head spoke again for a while, and was not asked: a canary of an idle engine came in meanwhile."""
    state, now, _ = probed(running(), NOW, POLICY.no_progress_s - 10.0)

    state, begun, ended = probed(state, now + 80.0, POLICY.no_progress_s)
    assert not ended

    _, _, ended = probed(state, begun, 2 * EVERY_S)
    assert ended


def test_probes_that_could_not_be_made_are_no_silence() -> None:
    state, now, _ = probed(running(), NOW, POLICY.no_progress_s - 10.0)

    state, _ = told(state, ev.CommandFailed("ProbePeer", "OSError: too many open files"), now)
    state, now, ended = probed(state, now + 200.0, POLICY.no_progress_s)

    assert not ended


@pytest.mark.parametrize("heard", [True, False])
def test_our_own_stall_is_no_silence_of_the_head_even_of_one_never_heard(heard: bool) -> None:
    state = running()
    if not heard:
        never = float("-inf")
        head = replace(state.peers[0], status=None, heard_at_s=never, mqtt_at_s=never, fresh=False)
        state = replace(state, peers=(head,))
    state, now, _ = probed(state, NOW, POLICY.no_progress_s - 10.0)

    state, _ = told(state, ev.LoopStalled(gap_s=300.0), now + 300.0)
    state, _, ended = probed(state, now + 300.0, POLICY.no_progress_s)

    assert not ended


@pytest.mark.parametrize("phase", [Phase.PAUSED, Phase.VERIFYING, Phase.SERVING])
def test_what_an_idle_engine_does_not_send_in_a_pause_says_nothing(phase: Phase) -> None:
    """Nothing tries it meanwhile. Of any other phase the last word may be older than what came after it."""
    state = running()
    (head,) = state.peers
    said = Telemetry(node=HEAD, instance="h", phase=phase, generation=7)
    state = replace(state, peers=(evolve(head, {"telemetry": said}),))

    _, _, ended = probed(state, NOW, 10 * POLICY.no_progress_s)

    assert ended is (phase is not Phase.PAUSED)
