"""A local model as a daemon keeps it: all that settings do not change is worked out once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sparkd.sizing.estimate import sizes_of
from sparkd.sizing.model import Checkpoint, Layout, Learned, Node, Options, Request
from sparkd.sizing.weights import Weights, weights_of
from sparkd.words import Floors, Settings


@dataclass(frozen=True, slots=True)
class Sized:
    """What a launch and a remedy ask of the model's files.

    Attributes:
        checkpoint: without its tensors: a large model has a hundred thousand.
        weights: of the fullest rank.
        layout, options: how it is served.
    """

    checkpoint: Checkpoint
    weights: Weights
    layout: Layout
    options: Options

    @property
    def weights_bytes(self) -> int | None:
        """Weights of one rank; None = only bounds are known."""
        return self.weights.bytes if self.weights.exact else None

    @property
    def checkpoint_bytes(self) -> int | None:
        """The weights' files together; None = none is there."""
        return sum(self.checkpoint.file_bytes) or None

    def longest(self, settings: Settings) -> tuple[int | None, int | None]:
        """Return the longest request in tokens, and the KV cache of one rank that it needs, in bytes."""
        sizes = sizes_of(self.request(Node(0), settings, Floors()), self.weights)
        tokens = sizes.max_model_len
        if tokens is None or sizes.layers.unknown:
            return tokens, None
        return tokens, sizes.cache.request_bytes(tokens)

    def request(
        self, node: Node, settings: Settings, floors: Floors, learned: Learned | None = None
    ) -> Request:
        """Return what is to be judged on a node."""
        return Request(self.checkpoint, node, settings, self.layout, self.options, learned, floors)


def sized(checkpoint: Checkpoint, layout: Layout, options: Options) -> Sized:
    """Work out what settings do not change."""
    weights = weights_of(checkpoint, layout, options)
    return Sized(replace(checkpoint, tensors=()), weights, layout, options)
