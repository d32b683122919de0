"""Evidence → diagnosis. Pure: needs no state, so that a bundle can be judged without a daemon.

1. Unit exits that were not ordered become signals of their own; ordered ones say nothing.
2. Consequences are set aside: what follows a hang, what follows the engine's own exception, a stop that came
   after the first trouble, and everything that the catalogue calls cascade (see `precedence`).
3. Of the rest the highest in the order is the root; among equals the earliest; times closer than
   `precedence.TIE_S` are no order, then the place within the group decides.
4. What no evidence decides is `unknown`, with what it might be and what would decide. Surface evidence
   ("EngineDeadError") names a cause that says so; it is never dressed up as more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sparkd.signals import precedence, sentence
from sparkd.signals.causes import NONE, UNKNOWN, cause_info
from sparkd.signals.model import Diagnosis, Evidence, Proof, Quantity, Quote, Signal, UnitExit
from sparkd.words import Phase, UnitName

EVIDENCE_MAX = 5
CASCADE_MAX = 8
# The same fact is reported by several readers within this time (an executor relays its worker's error; Ray
# forwards lines late).
RELAY_S = 10.0

_PROVEN, _SURFACE, _SUGGESTED, _ONLY_CASCADE = 0.95, 0.6, 0.6, 0.5
_WEAK = frozenset({"killed_unspecified", "nccl_init_failure", "nccl_remote_error", "engine_dead_unspecified"})
# The phases of a start, in order.
_START = (
    Phase.FORMING,
    Phase.RESOLVING_CONFIG,
    Phase.INIT_DISTRIBUTED,
    Phase.LOADING_WEIGHTS,
    Phase.COMPILING,
    Phase.PROFILING,
    Phase.ALLOCATING_KV_CACHE,
    Phase.CAPTURING_GRAPHS,
    Phase.STARTING_API,
    Phase.VERIFYING,
    Phase.SERVING,
)
# Phases in which "no broadcast block for 60 s" is ordinary work.
_BUSY = frozenset(_START[: _START.index(Phase.STARTING_API)])
# A generation that did not come back may be a hang, or a death that is read a moment later.
_SUSPICIONS = frozenset({"observed_canary_failed"})
_MIGHT_BE = {
    "killed_unspecified": ("kernel_oom", "cgroup_oom", "ray_oom_kill"),
    "engine_dead_unspecified": ("worker_process_died", "cuda_oom", "ray_oom_kill", "peer_lost"),
    "nccl_init_failure": ("shm_too_small", "ib_roce_error", "wrong_interface", "nccl_socket_connect"),
    "nccl_remote_error": ("worker_process_died", "peer_lost", "ib_roce_error"),
    UNKNOWN: ("worker_process_died", "clean_shutdown", "killed_unspecified", "bad_cli_argument"),
}
# Linux's numbers of the signals that end a process; the same on every machine that sparkd runs on.
_SIGKILL, _SIGTERM = 9, 15
_SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    13: "SIGPIPE",
    15: "SIGTERM",
}
_CRASHES = frozenset({4, 6, 7, 8, 11})


def judge(evidence: Evidence) -> Diagnosis:
    """Return the root cause that *evidence* proves, or `unknown` with what would decide."""
    exits = tuple(end for end in evidence.exits if not end.ordered)
    signals = _usable(evidence, exits)
    if not signals:
        return _unexplained(evidence, exits)
    ended = frozenset((end.node, end.unit is UnitName.SERVE) for end in exits)
    ours = precedence.after_our_fence(signals, evidence.fence_at_s, ended)
    signals = tuple(s for s in signals if s not in ours)
    if not signals:
        return _unexplained(evidence, exits)
    consequences = precedence.consequences(signals, frozenset(end.node for end in exits))
    open_signals = [s for s in signals if s not in consequences] or list(signals)
    root = _relayed(_root(open_signals), open_signals)
    return _diagnose(root, signals, evidence)


def _usable(evidence: Evidence, exits: Sequence[UnitExit]) -> tuple[Signal, ...]:
    """Return the signals that may explain the failure, exits among them, suggestions weighed."""
    told = [s for s in evidence.signals if s.proof is not Proof.NOISE and s.cause != NONE]
    told = [s for s in told if not (s.id == "engine_broadcast_waits" and evidence.phase in _BUSY)]
    told = [s for s in told if not _passed(s, evidence.phase)]
    told = [replace(s, proof=Proof.SUGGESTS) if s.id in _SUSPICIONS else s for s in told]
    told.extend(_exit_signals(exits))
    failed = min((s.at_s for s in told if s.fatal), default=None)
    ended = min((end.at_s for end in exits), default=None)
    times = [at_s for at_s in (failed, ended) if at_s is not None]
    fresh = [s for s in told if not precedence.is_stale(s, min(times, default=None))]
    proven = precedence.corroborate(fresh)
    return tuple(replace(s, proof=Proof.PROVES) if (s.cause, s.node) in proven else s for s in fresh)


def _passed(signal: Signal, phase: Phase | None) -> bool:
    """Return whether a signal that ended nothing is about a phase that the generation has left behind."""
    if signal.fatal or signal.phase not in _START or phase not in _START:
        return False
    return _START.index(phase) > _START.index(signal.phase)


def _exit_signals(exits: Sequence[UnitExit]) -> list[Signal]:
    """Return what unordered ends say by themselves; an exit code alone says nothing."""
    found = []
    for end in exits:
        cause, proof = _exit_cause(end)
        if cause is None:
            continue
        found.append(
            Signal(
                id=f"exit_{end.unit.value}",
                cause=cause,
                proof=proof,
                node=end.node,
                source=f"exit of {end.unit.value}",
                quote=f"{end.unit.value} on {end.node} {_how(end)}",
                at_s=end.at_s,
                generation=end.generation,
                fatal=True,
            )
        )
    return found


def _exit_cause(end: UnitExit) -> tuple[str | None, Proof]:
    number = end.signal if end.signal is not None else _signal_of(end.code)
    if end.unit is UnitName.RAY:
        return ("clean_shutdown" if number == _SIGTERM else "ray_node_died"), Proof.PROVES
    if number == _SIGKILL:
        return "killed_unspecified", Proof.PROVES
    if number in _CRASHES:
        return "worker_process_died", Proof.PROVES
    if number == _SIGTERM:
        return "clean_shutdown", Proof.SUGGESTS
    return None, Proof.NOISE


def _signal_of(code: int | None) -> int | None:
    """Return the signal number that a shell's exit code stands for (137 = 128 + SIGKILL)."""
    return code - 128 if code is not None and 128 < code < 160 else None


def _how(end: UnitExit) -> str:
    number = end.signal if end.signal is not None else _signal_of(end.code)
    if number is not None:
        return f"was killed with {_SIGNALS.get(number, f'signal {number}')}"
    if end.code is not None:
        return f"ended with code {end.code} without being asked"
    return "ended in an unknown way"


def _root(signals: Sequence[Signal]) -> Signal:
    """Return the highest in the order; among equals the earliest; within a tie by place."""
    top = min(precedence.weight(s) for s in signals)
    equal = [s for s in signals if precedence.weight(s) == top]
    first = min(s.at_s for s in equal)
    tied = [s for s in equal if s.at_s - first < precedence.TIE_S]
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
    return replace(root, quantities=tuple(merged))


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


def _diagnose(root: Signal, signals: Sequence[Signal], evidence: Evidence) -> Diagnosis:
    info = cause_info(root.cause)
    phase = _phase(root, evidence)
    node = _node(root, signals, evidence)
    support = [s for s in signals if s.cause == root.cause and (s.id, s.node) != (root.id, root.node)]
    rest = [s for s in signals if s.cause != root.cause and (s.fatal or s.at_s > root.at_s)]
    text = sentence.explain(root, phase, node, evidence.kv_cache_bytes)
    return Diagnosis(
        cause=root.cause,
        phase=phase,
        node=node,
        transient=_transient(root),
        confidence=_confidence(root),
        explanation=text,
        rank=root.rank,
        quantities=_with_kv_cache(root.quantities, evidence.kv_cache_bytes),
        evidence=(_quote(root, "root"), *(_quote(s, "support") for s in support[: EVIDENCE_MAX - 1])),
        cascade=tuple(_quote(s, "cascade") for s in sorted(rest, key=lambda s: s.at_s)[:CASCADE_MAX]),
        candidates=_MIGHT_BE.get(root.cause, ()) if _confidence(root) < _PROVEN else (),
        advice=info.advice,
    )


def _phase(root: Signal, evidence: Evidence) -> Phase | None:
    """Return the phase that the text proves; "serving" is only "a step", which a verification takes, too."""
    if root.phase is None or (root.phase is Phase.SERVING and evidence.phase is not None):
        return evidence.phase
    return root.phase


def _with_kv_cache(quantities: tuple[Quantity, ...], kv_cache_bytes: int | None) -> tuple[Quantity, ...]:
    if kv_cache_bytes is None or any(q.name == "kv_cache_bytes" for q in quantities):
        return quantities
    return (*quantities, Quantity("kv_cache_bytes", float(kv_cache_bytes)))


def _transient(root: Signal) -> bool | None:
    before, after = root.quantity("initial_free_bytes"), root.quantity("current_free_bytes")
    if root.cause == "memory_profiling_error" and before is not None and before == after:
        return False  # equal numbers: the old defect of vLLM, which comes back at every start
    return cause_info(root.cause).transient


def _confidence(root: Signal) -> float:
    if root.proof is Proof.CASCADE:
        return _ONLY_CASCADE
    if root.proof is Proof.SUGGESTS:
        return _SUGGESTED
    return _SURFACE if root.cause in _WEAK else _PROVEN


def _quote(signal: Signal, role: str) -> Quote:
    return Quote(
        node=signal.node, source=signal.source, printed=signal.printed or "", text=signal.quote, role=role
    )


def _unexplained(evidence: Evidence, exits: Sequence[UnitExit]) -> Diagnosis:
    """Return `unknown` for an end that nothing explains, `none` where nothing ended."""
    if not exits:
        return Diagnosis(
            cause=NONE,
            phase=evidence.phase,
            node=None,
            transient=None,
            confidence=_PROVEN,
            explanation="no evidence of a failure",
        )
    first = min(exits, key=lambda end: end.at_s)
    return Diagnosis(
        cause=UNKNOWN,
        phase=evidence.phase,
        node=first.node,
        transient=None,
        confidence=0.0,
        explanation=sentence.explain_exit(first.node, first.unit.value, _how(first), evidence.phase),
        evidence=tuple(
            Quote(end.node, f"exit of {end.unit.value}", "", f"{end.unit.value} on {end.node} {_how(end)}")
            for end in exits[:EVIDENCE_MAX]
        ),
        candidates=_MIGHT_BE[UNKNOWN],
        advice="The kernel log of every node and the engine's log before the end would decide.",
    )
