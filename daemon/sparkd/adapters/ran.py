"""`<unit>/ran` in the run directory: the last stamp that a unit has run, and its invocation."""

from __future__ import annotations

from sparkd.files import replace_whole

WORDS = 3


def write(run_dir: str, unit: str, stamp: tuple[int, int], invocation: str) -> None:
    """Note that *invocation* of the unit runs (epoch, generation) now. Raises OSError."""
    text = f"{stamp[0]} {stamp[1]} {invocation or '-'}\n"
    replace_whole(f"{run_dir}/{unit}/ran", text.encode(), 0o644)


def parsed(text: str) -> tuple[int, int, str]:
    """Return epoch, generation, invocation. Raises ValueError: it is no such note."""
    words = text.split()
    if len(words) != WORDS or not all(word.isascii() and word.isdecimal() for word in words[:2]):
        raise ValueError("is no stamp")
    return int(words[0]), int(words[1]), words[2]
