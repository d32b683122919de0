"""Evidence → diagnosis. Pure: needs no state, so that a bundle can be judged without a daemon.

1. Unit exits that were not ordered become signals of their own; ordered ones say nothing.
2. Consequences are set aside: what follows a hang, what follows the engine's own exception, a stop that came
   after the first trouble, and everything that the catalogue calls cascade (see `precedence`).
   What only suggests, and what nothing ties to the end (`hints`), and what a survivor prints after the end of
   another node (`peers`), explain nothing either.
3. Of the rest the highest in the order is the root; among equals the earliest; times of one node closer than
   `precedence.TIE_S`, and of two closer than their error, are no order, then the place in the group decides.
4. What no evidence decides is `unknown`, with what would decide; surface evidence is named as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sparkd.signals import (
    consequences,
    foreigners,
    hints,
    peers,
    precedence,
    quantities,
    runs,
    sentence,
    spread,
    survive,
    unread,
    when,
)
from sparkd.signals.causes import NONE, UNKNOWN, cause_info
from sparkd.signals.exceptions import is_slip
from sparkd.signals.exits import exit_signals, how, was_killed
from sparkd.signals.model import Diagnosis, Evidence, Proof, Quote, Signal, UnitExit, Weighed
from sparkd.signals.settle import settled
from sparkd.words import LIVE, Phase, UnitName

EVIDENCE_MAX = 5
CASCADE_MAX = 8
# The same fact is reported by several readers within this time (an executor relays its worker's error; Ray
# forwards lines late).
RELAY_S = 10.0

_PROVEN, _SURFACE, _SUGGESTED, _ONLY_CASCADE, _UNDECIDED = 0.95, 0.6, 0.6, 0.5, 0.0
_WEAK = frozenset({"killed_unspecified", "nccl_init_failure", "nccl_remote_error", "engine_dead_unspecified"})
# A generation that did not come back may be a hang, or a death that is read a moment later.
_SUSPICIONS = frozenset({"observed_canary_failed"})
_MIGHT_BE = {
    "engine_hang": ("peer_lost", "worker_process_died"),
    "killed_unspecified": ("kernel_oom", "cgroup_oom", "ray_oom_kill"),
    "engine_dead_unspecified": ("worker_process_died", "cuda_oom", "ray_oom_kill", "peer_lost"),
    "nccl_init_failure": ("shm_too_small", "ib_roce_error", "wrong_interface", "nccl_socket_connect"),
    "nccl_remote_error": ("worker_process_died", "peer_lost", "ib_roce_error"),
    "engine_internal_error": ("broken_install", "model_unsupported", "bad_cli_argument"),
    UNKNOWN: ("worker_process_died", "clean_shutdown", "killed_unspecified", "bad_cli_argument"),
}
# Faults of a kernel, after which the device goes on.
_PASSING_XIDS = frozenset({8, 13, 31, 32, 43, 45, 68, 69, 94})
_WOULD_DECIDE = "The kernel log of every node and the engine's log before the end would decide."


def judge(evidence: Evidence) -> Diagnosis:
    """Return the root cause that *evidence* proves, or `unknown` with what would decide."""
    return weigh(evidence)[0]


def weigh(evidence: Evidence) -> tuple[Diagnosis, tuple[Weighed, ...]]:
    """Return the diagnosis, and of every signal why it won or lost; last what is over."""
    exits = tuple(end for end in evidence.exits if not end.ordered)
    given = evidence
    evidence, over = settled(evidence)
    diagnosis, weighed = _weigh(evidence, exits)
    earlier = [s for s, why in over.items() if why == runs.WHY]
    if earlier and diagnosis.cause in runs.NO_FAILURE:
        diagnosis = runs.told(diagnosis, judge(runs.earlier(earlier, given)))
    return diagnosis, (*weighed, *(Weighed(s, "set aside", why) for s, why in over.items()))


def _weigh(evidence: Evidence, exits: tuple[UnitExit, ...]) -> tuple[Diagnosis, tuple[Weighed, ...]]:
    raw = (*evidence.signals, *exit_signals(exits))
    unheard = _unheard(raw, evidence)
    told = _promoted(raw, unheard, evidence)
    heard = [s for s in told if s not in unheard]
    aside = unheard | _set_aside(heard, exits, evidence)
    kept = [s for s in heard if s not in aside]
    loose = hints.hints_of(kept, exits)
    aside |= dict.fromkeys(loose, hints.WHY)
    signals = tuple(s for s in kept if s not in loose)
    error_s = precedence.order_error_s(evidence)
    survivors = peers.after_a_peers_end(signals, exits, error_s)
    ended = frozenset(end.node for end in exits)
    follow = (*consequences.of_earlier(signals, ended, evidence.works, error_s), *survivors)
    aside |= dict.fromkeys(follow, "follows from what was said before it")
    open_signals = [s for s in signals if s not in follow]
    if not open_signals and (not signals or (survivors and exits)):
        return _unexplained(evidence, exits, loose, survivors), _weighed(told, aside, None)
    open_signals = open_signals or list(signals)
    best = _root(open_signals, error_s)
    root = quantities.with_port(_unless_unheard(_relayed(best, open_signals), evidence), evidence)
    return _diagnose(root, signals, loose, evidence), _weighed(told, aside, best)


def _unheard(raw: Sequence[Signal], evidence: Evidence) -> dict[Signal, str]:
    """Return the signals that are not about this engine's end, each with the reason."""
    others = foreigners.of(evidence.speakers, (s.source for s in raw))
    foreign = [s for s in raw if s.source in others and foreigners.may_be_anybodys(s)]
    ours = [s for s in raw if s not in foreign]
    lived = survive.acquitted(ours, evidence)
    return {**dict.fromkeys(foreign, foreigners.WHY), **dict.fromkeys(lived, survive.WHY)}


def _promoted(raw: Sequence[Signal], unheard: Mapping[Signal, str], evidence: Evidence) -> tuple[Signal, ...]:
    """Return the signals with the cause and the proof that they have in this evidence."""
    heard = [s for s in raw if s not in unheard]
    proven = precedence.corroborate([s for s in heard if s.proof is not Proof.NOISE])
    outgrown = survive.outgrown(heard, evidence)
    return tuple(s if s in unheard else _weighted(s, proven, outgrown, evidence) for s in raw)


def _weighted(
    signal: Signal, proven: frozenset[tuple[str, str]], outgrown: Sequence[Signal], evidence: Evidence
) -> Signal:
    if signal in outgrown:
        return replace(signal, cause=UNKNOWN, proof=Proof.CASCADE)
    if signal.id in _SUSPICIONS:
        signal = replace(signal, proof=Proof.SUGGESTS)
    if precedence.has_engine(evidence):
        signal = replace(signal, cause=precedence.OF_ANYBODY.get(signal.id, signal.cause))
    if (signal.cause, signal.node) in proven:
        signal = replace(signal, proof=Proof.PROVES)
    return signal


def _set_aside(told: Sequence[Signal], exits: Sequence[UnitExit], evidence: Evidence) -> dict[Signal, str]:
    """Return the signals that explain nothing here, each with the reason."""
    failed = min((s.at_s for s in told if s.fatal and s.proof is not Proof.NOISE), default=None)
    ended = min((end.at_s for end in exits), default=None)
    first_s = min((at_s for at_s in (failed, ended) if at_s is not None), default=None)
    # What was killed says nothing more itself: what is still said of its end was ended by our fence.
    by_unit = frozenset((end.node, end.unit is UnitName.SERVE) for end in exits if not was_killed(end))
    ours = consequences.after_our_fence(told, evidence.fence_at_s, by_unit)
    killed = {(end.node, end.unit is UnitName.SERVE): end.at_s for end in exits if was_killed(end)}
    rest = consequences.of_a_killed_root(told, killed)
    aside: dict[Signal, str] = dict.fromkeys(ours, "said by what sparkd itself was ending")
    aside |= dict.fromkeys(rest, "said by what was ended with its unit's root")
    left = [s for s in told if s not in aside]
    decided = first_s is not None and _is_decided(left, exits, first_s, evidence)
    waited_s = max((s.at_s for s in told if s.id in precedence.WAITS and _is_by(s, first_s)), default=0.0)
    for signal in told:
        # What is said again while it lasts is as old as its last word.
        last = replace(signal, at_s=max(signal.at_s, waited_s)) if signal.id in precedence.WAITS else signal
        why = _why_nothing(last, first_s, evidence, decided=decided)
        if why:
            aside.setdefault(signal, why)
    return aside


def _is_by(signal: Signal, first_s: float | None) -> bool:
    return first_s is None or signal.at_s <= first_s


def _is_decided(
    told: Sequence[Signal], exits: Sequence[UnitExit], first_s: float, evidence: Evidence
) -> bool:
    heard = [s for s in told if s.proof is not Proof.NOISE and s.cause != NONE]
    ended, error_s = frozenset(end.node for end in exits), precedence.order_error_s(evidence)
    follow = consequences.of_earlier(heard, ended, evidence.works, error_s)
    return precedence.is_decided([s for s in heard if s not in follow], first_s)


def _why_nothing(signal: Signal, first_s: float | None, evidence: Evidence, *, decided: bool) -> str:
    """Return why a signal cannot explain what happened, empty where it can."""
    if signal.proof is Proof.NOISE or signal.cause == NONE:
        return "known to be harmless"
    if _passed(signal, evidence.phase):
        return f"about {signal.phase}, which was passed"
    if first_s is None:
        return "" if precedence.speaks_alone(signal, evidence) else "a warning, and nothing failed"
    if evidence.recorded and signal.proof is Proof.PROVES:
        return ""
    return "too long before the failure" if precedence.is_stale(signal, first_s, decided=decided) else ""


def _passed(signal: Signal, phase: Phase | None) -> bool:
    """Return whether a signal that ended nothing is about a phase that the generation has left behind."""
    if signal.fatal or signal.phase not in LIVE or phase not in LIVE:
        return False
    return LIVE.index(phase) > LIVE.index(signal.phase)


def _weighed(told: Sequence[Signal], aside: Mapping[Signal, str], root: Signal | None) -> tuple[Weighed, ...]:
    return tuple(_verdict(s, aside, root) for s in told)


def _verdict(signal: Signal, aside: Mapping[Signal, str], root: Signal | None) -> Weighed:
    if signal == root:
        return Weighed(signal, "root", precedence.why_first(signal))
    if signal.proof is Proof.NOISE:
        return Weighed(signal, "noise", aside.get(signal, "known to be harmless"))
    if root is not None and signal.cause == root.cause:
        return Weighed(signal, "support", "says the same as the root")
    if signal in aside:
        return Weighed(signal, "set aside", aside[signal])
    return Weighed(signal, "cascade", precedence.why_after(signal, root))


def _root(signals: Sequence[Signal], error_s: float) -> Signal:
    """Return the highest in the order; among equals the earliest; within a tie by place.

    What two nodes said is tied within *error_s*, what one node said within `precedence.TIE_S`.
    """
    top = min(precedence.weight(s) for s in signals)
    equal = [s for s in signals if precedence.weight(s) == top]
    first = min(equal, key=lambda s: s.at_s)
    tied = [s for s in equal if s.at_s - first.at_s < precedence.tie_s(s, first, error_s)]
    return min(tied, key=lambda s: (precedence.place(s), s.at_s))


def _relayed(root: Signal, signals: Sequence[Signal]) -> Signal:
    """Return the best report of the root's fact: of a relayed error the one that names its rank and node."""
    same = [
        s
        for s in signals
        if s.cause == root.cause and s.proof is root.proof and 0 <= s.at_s - root.at_s <= RELAY_S
    ]
    if root.rank is None and root.cause != "worker_process_died":
        named = [s for s in same if s.rank is not None and s.node]
        root = min(named, key=lambda s: s.at_s) if named else root
    known = {q.name for q in root.quantities}
    more = [q for s in same if s.node == root.node for q in s.quantities]
    merged = list(root.quantities)
    for quantity in more:
        if quantity.name not in known:
            known.add(quantity.name)
            merged.append(quantity)
    phase = root.phase or next((s.phase for s in same if s.phase is not None), None)
    return quantities.lasting(replace(root, quantities=tuple(merged), phase=phase), signals)


def _unless_unheard(root: Signal, evidence: Evidence) -> Signal:
    """Return a time-out as what it is where nothing tells a node that hangs from one that is lost."""
    if spread.is_unheard(evidence) and root.cause == "engine_hang" and root.proof is Proof.SUGGESTS:
        return replace(root, cause=UNKNOWN)
    return root


def _node(root: Signal, signals: Sequence[Signal], evidence: Evidence) -> str | None:
    """Return the guilty node; where the root does not name it, others who tell of the same end may."""
    if root.node:
        return root.node
    if root.cause == "ray_gcs_unreachable":
        return evidence.head
    telling = [
        s
        for s in signals
        if s.node
        and abs(s.at_s - root.at_s) <= RELAY_S
        and (s.cause == root.cause or (root.cause == "ray_node_died" and s.cause == "worker_process_died"))
        and (s.rank is None or root.rank is None or s.rank == root.rank)
    ]
    telling.sort(key=lambda s: (s.cause != root.cause, abs(s.at_s - root.at_s)))
    return telling[0].node if telling else None


def _diagnose(
    root: Signal, signals: Sequence[Signal], loose: Sequence[Signal], evidence: Evidence
) -> Diagnosis:
    root = _named(root)
    info = cause_info(root.cause)
    phase = when.phase_of(root, signals, evidence)
    node = _node(root, signals, evidence)
    others = [s for s in signals if not _is_same_line(s, root)]
    support = [s for s in others if s.cause == root.cause and (s.id, s.node) != (root.id, root.node)]
    rest = [s for s in others if s.cause != root.cause and (s.fatal or s.at_s > root.at_s)]
    kv_cache_bytes = quantities.kv_cache_of(root, evidence)
    text = sentence.explain(root, phase, node, kv_cache_bytes)
    might = unread.killers(root, evidence)
    return Diagnosis(
        cause=root.cause,
        phase=phase,
        node=node,
        transient=_transient(root),
        confidence=_confidence(root, might),
        explanation=text,
        rank=root.rank,
        quantities=quantities.with_kv_cache(root.quantities, kv_cache_bytes),
        evidence=(_quote(root, "root"), *(_quote(s, "support") for s in support[: EVIDENCE_MAX - 1])),
        cascade=tuple(_quote(s, "cascade") for s in sorted(rest, key=lambda s: s.at_s)[:CASCADE_MAX]),
        candidates=_candidates(root, loose, might, evidence),
        advice=unread.advice(might)
        if might
        else info.advice or (_WOULD_DECIDE if root.cause == UNKNOWN else ""),
    )


def _named(root: Signal) -> Signal:
    """Return *root*; an exception of the engine's own code is no unknown cause."""
    if root.id != precedence.ENGINES_OWN:
        return root
    return replace(root, cause="engine_internal_error", proof=Proof.SUGGESTS)


def _is_same_line(signal: Signal, root: Signal) -> bool:
    """Return whether *signal* quotes the very words of *root*: one line that says two things is one proof."""
    return (signal.writer, signal.source, signal.quote) == (root.writer, root.source, root.quote) and (
        signal.id != root.id
    )


def _candidates(
    root: Signal, loose: Sequence[Signal], killers: tuple[str, ...], evidence: Evidence
) -> tuple[str, ...]:
    if _confidence(root, killers) >= _PROVEN:
        return ()
    if killers:
        return tuple(dict.fromkeys((*(s.cause for s in loose if s.cause != root.cause), *killers)))
    if spread.is_unheard(evidence) and root.cause == UNKNOWN:
        return spread.MIGHT_BE
    if root.cause == UNKNOWN and root.id in precedence.WAITS:
        return ("engine_hang", *_MIGHT_BE["engine_hang"])
    might = _might_be(root.cause, loose)
    if root.cause == UNKNOWN and is_slip(root.quote):
        return ("engine_internal_error", *(cause for cause in might if cause != "clean_shutdown"))
    return might


def _might_be(cause: str, loose: Sequence[Signal]) -> tuple[str, ...]:
    """Return what it might be: what is suggested first, then what it usually is."""
    return tuple(dict.fromkeys((*(s.cause for s in loose), *_MIGHT_BE.get(cause, ()))))


def _transient(root: Signal) -> bool | None:
    code = root.quantity("xid_code") or root.quantity("previous_code")
    if root.cause == "gpu_xid" and code is not None:
        return int(code) in _PASSING_XIDS
    before, after = root.quantity("initial_free_bytes"), root.quantity("current_free_bytes")
    if root.cause == "memory_profiling_error" and before is not None and before == after:
        return False  # equal numbers: the old defect of vLLM, which comes back at every start
    return cause_info(root.cause).transient


def _confidence(root: Signal, killers: Sequence[str]) -> float:
    if root.cause == UNKNOWN:
        return _UNDECIDED
    if root.proof is Proof.CASCADE:
        return _ONLY_CASCADE
    if root.proof is Proof.SUGGESTS:
        return _SUGGESTED
    return _SURFACE if root.cause in _WEAK or killers else _PROVEN


def _quote(signal: Signal, role: str) -> Quote:
    return Quote(
        node=signal.node,
        source=signal.file or signal.source,
        printed=signal.printed or "",
        text=signal.quote,
        role=role,
    )


def _unexplained(
    evidence: Evidence, exits: Sequence[UnitExit], loose: Sequence[Signal], survivors: Sequence[Signal]
) -> Diagnosis:
    """Return `unknown` for an end that nothing explains, our own included; `none` where nothing ended."""
    if exits:
        first = min(exits, key=lambda end: end.at_s)
        node = first.node
        told = sentence.explain_exit(node, first.unit.value, how(first), evidence.phase)
    elif evidence.fence_at_s is not None:
        node, told = None, "sparkd ended the engine for signs that turned out to explain nothing"
    else:
        return _nothing(evidence)
    return Diagnosis(
        cause=UNKNOWN,
        phase=evidence.phase,
        node=node,
        transient=None,
        confidence=0.0,
        explanation=told,
        evidence=tuple(
            Quote(end.node, f"exit of {end.unit.value}", "", f"{end.unit.value} on {end.node} {how(end)}")
            for end in exits[:EVIDENCE_MAX]
        ),
        cascade=tuple(_quote(s, "cascade") for s in survivors[:CASCADE_MAX]),
        candidates=_might_be(UNKNOWN, loose),
        advice=_WOULD_DECIDE,
    )


def _nothing(evidence: Evidence) -> Diagnosis:
    return Diagnosis(
        cause=NONE,
        phase=evidence.phase,
        node=None,
        transient=None,
        confidence=_PROVEN,
        explanation="no evidence of a failure",
    )
