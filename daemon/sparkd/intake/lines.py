r"""Bytes → lines: any bytes, any length, any split.

A line ends at \n, \r\n or \r (a progress bar is many lines). Empty lines are not given: they carry
nothing, and so a \r\n that arrives in two pieces needs no memory. A line is decoded as a whole, so a
character that arrives in two pieces is not damaged; what is no UTF-8 becomes U+FFFD.
"""

from __future__ import annotations

import re

# Longer than any line that the catalogue knows; a dump of a configuration or of a batch can be megabytes.
LINE_BYTES_MAX = 16 * 1024
_CUT = " …[cut {} bytes]"
_UNPRINTED = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor movements
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, links
    r"|\x1b[@-Z\\^_]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


class Lines:
    """Splits one source's bytes; holds at most one unfinished line of bounded size."""

    def __init__(self, limit: int = LINE_BYTES_MAX) -> None:
        self._limit = limit
        self._held = bytearray()
        self._cut = 0

    def feed(self, chunk: bytes) -> list[str]:
        """Return the lines that *chunk* completes."""
        lines = []
        for piece in chunk.splitlines(keepends=True):
            text = piece.rstrip(b"\r\n")
            if self._held or self._cut or len(text) > self._limit or len(text) == len(piece):
                self._hold(text)
                line = self._finish() if len(text) < len(piece) else ""
            else:
                line = clean(text)
            if line:
                lines.append(line)
        return lines

    def flush(self) -> list[str]:
        """Return the unfinished line, if there is one: the source has ended."""
        line = self._finish()
        return [line] if line else []

    def _hold(self, text: bytes) -> None:
        room = self._limit - len(self._held)
        self._held += text[:room]
        self._cut += max(0, len(text) - room)

    def _finish(self) -> str:
        line = clean(bytes(self._held))
        if self._cut:
            line += _CUT.format(self._cut)
        self._held.clear()
        self._cut = 0
        return line


def clean(text: bytes) -> str:
    """Return *text* decoded, without escape sequences and control characters (tabs stay)."""
    line = text.decode("utf-8", "replace")
    return line if line.isprintable() else _UNPRINTED.sub("", line)
