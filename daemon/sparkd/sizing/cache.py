"""The KV cache as vLLM lays it out: groups of layers that share one pool of equal pages.

Read in vLLM 0.32: v1/core/kv_cache_utils.py, v1/kv_cache_interface.py, platforms/interface.py
(_align_hybrid_block_size). A backend that packs pages of several sizes into one block wastes less than this.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkd.sizing.layers import Kept, Layers

EVEN = 1.5
"""Kinds whose layer counts differ by less than this factor get groups of the larger size, padded."""


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share one block table: their block in tokens, and how many such groups there are."""

    kept: Kept
    block: int
    number: int


@dataclass(frozen=True, slots=True)
class Cache:
    """The layout of one rank's cache.

    Attributes:
        groups: by what the layers keep.
        block_bytes: what one block takes of the pool; 0 = nothing is cached.
        token_bytes: what each further token of a long request takes.
        batch_tokens: tokens that may be on their way at once.
    """

    groups: tuple[Group, ...] = ()
    block_bytes: int = 0
    token_bytes: int = 0
    batch_tokens: int = 0

    def blocks(self, tokens: int) -> int:
        """Return the blocks that one request of so many tokens holds."""
        return sum(group.number * self._of_group(group, tokens) for group in self.groups)

    def _of_group(self, group: Group, tokens: int) -> int:
        if group.kept.state_bytes:
            return 1
        if group.kept.window is None:
            return -(-tokens // group.block)
        return -(-min(group.kept.window - 1 + self.batch_tokens, tokens) // group.block) + 1

    def request_bytes(self, tokens: int) -> int:
        """Return what one request of so many tokens holds."""
        return self.blocks(tokens) * self.block_bytes

    def longest(self, available_bytes: int, most: int) -> int:
        """Return the longest request that fits, at most *most*; found by halving, since it only grows."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.request_bytes(middle) <= available_bytes else (low, middle - 1)
        return low


def cache_of(layers: Layers, block_size: int, batch_tokens: int) -> Cache:
    """Return the layout for what the layers keep."""
    counted = [(kept, number) for kept, number in layers.counted if kept.token_bytes or kept.state_bytes]
    if not counted:
        return Cache()
    block = _aligned(counted, block_size)
    sizes = [kept.state_bytes or kept.token_bytes * block for kept, _ in counted]
    page = max(sizes)
    width = _group_size([number for _, number in counted])
    groups = tuple(Group(kept, _scaled(kept, block, page), -(-number // width)) for kept, number in counted)
    full = sum(g.number / g.block for g in groups if g.kept.window is None and not g.kept.state_bytes)
    return Cache(groups, page * width, round(full * page * width), batch_tokens)


def _aligned(counted: list[tuple[Kept, int]], block_size: int) -> int:
    """Beside states a block of attention is enlarged until its page holds a state."""
    state = max(kept.state_bytes for kept, _ in counted)
    token = max(kept.token_bytes for kept, _ in counted)
    if not state or not token:
        return block_size
    return block_size * -(-state // (block_size * token))


def _scaled(kept: Kept, block: int, page: int) -> int:
    own = kept.token_bytes * block
    return block * (page // own) if own and page % own == 0 else block


def _group_size(numbers: list[int]) -> int:
    least, most = min(numbers), max(numbers)
    return most if most < least * EVEN else least
