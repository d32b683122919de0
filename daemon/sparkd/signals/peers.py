"""What a survivor prints after another node's end: transport errors that follow, however well proven.

RDMA reports a retry that was exceeded, gloo a mesh that could not be connected, NCCL a socket that nobody
answers: of a peer that is gone this is true and explains nothing. It is the cause only where it stands before
the first end, or where the ended node told of the same trouble before it ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkd.signals.exits import was_killed
from sparkd.signals.model import Proof, Signal, UnitExit
from sparkd.signals.precedence import INSTALLED, LINGER_S, NEAR_S, SUSPICION_S, TIE_S, WAITED_FOR_A_DEAD

_TRANSPORT = frozenset(
    {
        "gloo_connect_failure",
        "ib_roce_error",
        "nccl_init_failure",
        "nccl_remote_error",
        "nccl_socket_connect",
        "ray_insufficient_resources",
    }
)
# What is said of the other side: a node that says it before it ends did not end of itself.
_OF_THE_OTHER = _TRANSPORT | WAITED_FOR_A_DEAD | {"peer_lost"}
# Proven and fatal, these end a process of the node that they concern.
_ENDS = INSTALLED | {
    "cuda_illegal_memory_access",
    "device_side_assert",
    "killed_unspecified",
    "peer_lost",
    "ray_node_died",
    "worker_process_died",
}
# Of these the text often does not name the node, but it is another one than the writer.
_ELSEWHERE = frozenset({"peer_lost", "ray_node_died"})


@dataclass(frozen=True, slots=True)
class _End:
    """An end on a node, and until when its node's own words stand before it."""

    node: str
    writer: str
    at_s: float
    words_until_s: float

    def is_elsewhere(self, writer: str) -> bool:
        return self.node != writer if self.node else self.writer == writer


def after_a_peers_end(
    signals: Sequence[Signal], exits: Sequence[UnitExit], error_s: float
) -> tuple[Signal, ...]:
    """Return the signals that an earlier end on another node made its survivors print.

    Closer than *error_s* times of two nodes are no order: then the end is what is nearer, since no broken
    transport ends a process that does not say so.
    """
    ends = [end for end in _ends(signals, exits) if not _was_told_before(end, signals)]
    return tuple(s for s in signals if any(_follows(s, end, error_s) for end in ends))


def _ends(signals: Sequence[Signal], exits: Sequence[UnitExit]) -> list[_End]:
    told = [
        _End(s.node, s.writer, s.at_s, s.at_s)
        for s in signals
        if s.fatal and s.proof is Proof.PROVES and s.cause in _ENDS and (s.node or s.cause in _ELSEWHERE)
    ]
    # The last words of what ended by itself are read a bit later; what was killed has none.
    seen = [_End(e.node, e.node, e.at_s, e.at_s + (0.0 if was_killed(e) else TIE_S)) for e in exits]
    return [*told, *seen]


def _was_told_before(end: _End, signals: Sequence[Signal]) -> bool:
    return any(
        s.fatal
        and s.cause in _OF_THE_OTHER
        and s.writer == end.node
        and 0.0 <= end.words_until_s - s.at_s <= NEAR_S
        for s in signals
    )


def _follows(signal: Signal, end: _End, error_s: float) -> bool:
    if signal.proof is Proof.CASCADE or not end.is_elsewhere(signal.writer):
        return False
    if signal.cause in WAITED_FOR_A_DEAD:
        after_s = SUSPICION_S
    elif signal.cause in _TRANSPORT:
        after_s = -error_s
    else:
        return False
    return after_s < signal.at_s - end.at_s <= LINGER_S
