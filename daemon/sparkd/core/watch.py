"""Watching a running generation: probes on their periods, real token progress, Ray's table, the canary.

`/health` says 200 through every hang, so what counts is tokens: an engine is healthy while its counter
grows, and where nobody asks it for tokens sparkd does (the canary). What did not answer is unknown: it
never counts as progress, and it is judged only after its own silence deadline.
"""

from __future__ import annotations

from sparkd.core.commands import ProbeEngine, ProbeMembership, SendCanary
from sparkd.core.incident import observe_failure
from sparkd.core.membership import lost_nodes
from sparkd.core.messages import UnitState
from sparkd.core.state import Watch
from sparkd.core.turn import Turn
from sparkd.words import ENGINE, LIVE, Backend, Phase, UnitName

CANARY_PROMPTLY_S = 15.0
"""A canary so long after the last token of an engine that was busy: a hang is found before the next one.
Longer than the pauses between the requests of a few users, a quarter of the default `canary_idle_s`."""

STARTING_EVERY_S = 0.25
"""Period of the probes on which a start waits: what is lost by it is sparkd's own share of a start, which
takes minutes; a probe costs a millisecond."""

CANARY_LATER_S = 5.0
"""A canary's own deadline lies behind that of a hang, so that the hang is judged and not the canary."""

CANARY_MISSES_MAX = 3
"""So many answered but wrong canaries in a row end a generation: one may meet a full queue, two the end of a
burst; a relaunch costs minutes of service, a third canary a quarter of one."""


def probe(turn: Turn) -> None:
    """Ask what is due to be asked in this phase; one question of a kind at a time."""
    lead = turn.state.coordinator
    if lead is None:
        return
    phase = lead.at
    if phase in LIVE and (phase is not Phase.FORMING or ray_runs(turn)):
        _probe_membership(turn)
    if phase in _ASKS_ENGINE:
        _probe_engine(turn)


_ASKS_ENGINE = (*ENGINE, Phase.SERVING)


def ray_runs(turn: Turn) -> bool:
    """Return whether this node's Ray unit of the newest generation runs."""
    generation = turn.lead.generation
    for unit in turn.member.units:
        if unit.generation == generation and unit.unit is UnitName.RAY and unit.state is UnitState.RUNNING:
            return True
    return False


def _probe_membership(turn: Turn) -> None:
    lead = turn.lead
    if lead.watch.probing_membership or turn.policy.backend is not Backend.RAY:
        return
    if turn.due(next_membership_s(turn)):
        turn.set_watch(news=False, probing_membership=True, probed_membership_at_s=turn.now)
        turn.order(ProbeMembership(generation=lead.generation))


def next_membership_s(turn: Turn) -> float:
    """Return when Ray's table is to be asked for next."""
    lead = turn.lead
    return lead.watch.probed_membership_at_s + _period(lead.phase, turn.policy.membership_every_s)


_WAITED_FOR = (Phase.FORMING, Phase.STARTING_API)


def _period(phase: Phase, every_s: float) -> float:
    """While a start waits for the answer, ask more often: it is sparkd's own share of the start."""
    return min(every_s, STARTING_EVERY_S) if phase in _WAITED_FOR else every_s


def _probe_engine(turn: Turn) -> None:
    lead = turn.lead
    if lead.watch.probing_engine or not turn.due(next_engine_s(turn)):
        return
    turn.set_watch(news=False, probing_engine=True, probed_engine_at_s=turn.now)
    turn.order(ProbeEngine(generation=lead.generation))


def next_engine_s(turn: Turn) -> float:
    """Return when the engine's health and counters are to be asked for next."""
    lead = turn.lead
    return lead.watch.probed_engine_at_s + _period(lead.phase, turn.policy.engine_every_s)


def send_canary(turn: Turn, deadline_s: float) -> None:
    """Ask for one real generation; one at a time."""
    turn.set_watch(canary_sent_at_s=turn.now)
    turn.order(SendCanary(generation=turn.lead.generation, deadline_s=deadline_s))


def check_ray(turn: Turn) -> None:
    """A configured node that Ray does not list as alive ends the generation; so does a silent head."""
    if turn.policy.backend is not Backend.RAY:
        return
    watch = turn.lead.watch
    lost = lost_nodes(watch.membership, turn.policy)
    if lost:
        why = _death_reason(turn, lost[0])
        text = f"Ray no longer lists {', '.join(lost)} as alive{why}"
        observe_failure(turn, "observed_ray_node_dead", "ray_node_died", text, node=lost[0])
    elif _silent_too_long(turn):
        text = (
            f"Ray's head has not answered for {turn.policy.membership_silence_s:g} s: {watch.membership_why}"
        )
        observe_failure(turn, "observed_gcs_unreachable", "ray_gcs_unreachable", text, node=turn.state.node)


def _silent_too_long(turn: Turn) -> bool:
    """A table that is unknown says nothing while tokens flow."""
    watch = turn.lead.watch
    known_at_s = watch.membership_ok_at_s
    if turn.lead.phase is Phase.SERVING:
        known_at_s = max(known_at_s, watch.token_at_s)
    return turn.due(known_at_s + turn.policy.membership_silence_s)


def renew(turn: Turn) -> None:
    """Begin every silence of the watched generation anew."""
    watch, now = turn.lead.watch, turn.now
    turn.set_watch(
        progress_at_s=now,
        membership_ok_at_s=now,
        token_at_s=now,
        outstanding_since_s=None if watch.outstanding_since_s is None else now,
        canary_sent_at_s=None if watch.canary_sent_at_s is None else now,
    )


def _death_reason(turn: Turn, name: str) -> str:
    address = dict(turn.policy.nodes)[name]
    observed = turn.lead.watch.membership
    dead = [n for n in (observed.nodes or ()) if n.address == address and n.death_reason] if observed else []
    return f": {dead[-1].death_reason}" if dead else ""


def check_serving(turn: Turn) -> None:
    """Find a hang: requests outstanding, or a canary, and no token for the configured time."""
    _ask_when_quiet(turn)
    _check_progress(turn)
    _check_answers(turn)


def _ask_when_quiet(turn: Turn) -> None:
    watch = turn.lead.watch
    if watch.canary_sent_at_s is not None:
        return
    quiet_since_s = max(watch.token_at_s, watch.canary_done_at_s)
    pause_s = turn.policy.canary_idle_s
    unknown = watch.engine is not None and watch.engine.running is None
    if watch.token_at_s > watch.canary_done_at_s or watch.canary_ok is not True or unknown:
        pause_s = min(pause_s, CANARY_PROMPTLY_S, turn.policy.no_progress_s / 2)
    if turn.due(quiet_since_s + pause_s):
        send_canary(turn, turn.policy.no_progress_s + CANARY_LATER_S)


def _check_progress(turn: Turn) -> None:
    watch = turn.lead.watch
    limit_s = turn.policy.no_progress_s
    asked = [at for at in (outstanding_since_s(watch), watch.canary_sent_at_s) if at is not None]
    if not asked or not turn.due(max(watch.token_at_s, min(asked)) + limit_s):
        return
    requests = _requests(turn)
    healthy = {True: "200", False: "unhealthy", None: "nothing"}[engine_health(turn)]
    text = f"no token for {limit_s:g} s while {requests} outstanding; /health says {healthy}"
    observe_failure(turn, "observed_no_progress", "engine_hang", text)


def outstanding_since_s(watch: Watch) -> float | None:
    """Return since when requests wait, as far as it is known now: what counted a while ago is no cause."""
    known = watch.engine is not None and watch.engine.running is not None
    return watch.outstanding_since_s if known else None


def _check_answers(turn: Turn) -> None:
    """Wrong or refused answers again and again: it runs and does not serve."""
    watch = turn.lead.watch
    if watch.canary_misses >= CANARY_MISSES_MAX and turn.lead.phase is Phase.SERVING:
        text = f"{watch.canary_misses} real generations in a row did not come right: {watch.canary_why}"
        observe_failure(turn, "observed_canary_failed", "engine_hang", text)


def engine_health(turn: Turn) -> bool | None:
    """Return what /health said last, None = unknown."""
    engine = turn.lead.watch.engine
    return engine.healthy if engine is not None else None


def _requests(turn: Turn) -> str:
    engine = turn.lead.watch.engine
    count = (engine.running or 0) + (engine.waiting or 0) if engine else 0
    return f"{count} requests were" if count else "sparkd's own request was"


def serve_is_up(turn: Turn) -> bool:
    """Return whether the engine's own port says healthy."""
    return engine_health(turn) is True
