"""Floods: lines of one shape by the thousand, of which the first and the last ones tell what all of them do.

A program that fails in a loop writes millions of errors that differ in their numbers only. Two lines are of
one shape where they are equal without digits (and the letters that hexadecimal digits are). A line of another
shape among them is always read, whatever words it shares with them.
"""

from __future__ import annotations

# Below so many telling places in a block nothing is left out: no live tail comes near it.
PLACES_MIN = 2000
# So many lines of a shape are read at the beginning of a block, and of all that is left out at its end: a
# judgement keeps eight repeats of a signal, a report has at most 400 lines.
KEPT = 400
_SHAPE_BYTES = 400
_VARYING = b"0123456789abcdefABCDEF"


def thinned(block: bytes, places: list[int]) -> tuple[list[int], frozenset[int]]:
    """Return the *places* of lines that are read, and where the lines that are left out begin.

    Args:
        block: whole lines, each ended.
        places: where something stands that makes a line matter, ascending by line.
    """
    if len(places) < PLACES_MIN:
        return places, frozenset()
    kept: list[int] = []
    left_out: list[int] = []
    seen: dict[bytes, int] = {}
    stop = -1
    is_flood = False
    for place in places:
        if place > stop:
            begin = block.rfind(b"\n", 0, place) + 1
            stop = block.find(b"\n", place)
            shape = block[begin:stop][:_SHAPE_BYTES].translate(None, _VARYING)
            count = seen[shape] = seen.get(shape, 0) + 1
            is_flood = count > KEPT
            if is_flood:
                left_out.append(begin)
        if not is_flood:
            kept.append(place)
    return sorted(kept + left_out[-KEPT:]), frozenset(left_out[:-KEPT])
