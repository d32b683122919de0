r"""Bytes → lines: any bytes, any length, any split.

A line ends at \n, \r\n or \r (a progress bar is many lines). Empty lines are not given: they carry nothing,
and so a \r\n that arrives in two pieces needs no memory. A line is decoded as a whole, so a character that
arrives in two pieces is not damaged; what is no UTF-8 becomes U+FFFD.

Whole lines are handed on in blocks: what looks for words (`sieve`) sees a block at once, and only lines that
matter become text. Colours and control characters are taken out before, so that they hide no word.
"""

from __future__ import annotations

import re

# Longer than any line that the catalogue knows; a dump of a configuration or of a batch can be megabytes.
LINE_BYTES_MAX = 16 * 1024
# So much of a log tells what it is: its encoding, form, clock, and whose it is.
HEAD_BYTES = 1 << 16
_CUT = b" \xe2\x80\xa6[cut %d bytes]"
_ESCAPES = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor movements
    rb"|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # titles, links
    rb"|\x1b[@-Z\\^_]?"
)
_CONTROLS = dict.fromkeys({*range(0x20), *range(0x7F, 0xA0)} - {ord("\t")})
_ENDS = re.compile(rb"[\r\n]")


class Blocks:
    """Puts one source's bytes together to blocks of whole lines; holds one bounded unfinished line."""

    def __init__(self, limit: int = LINE_BYTES_MAX) -> None:
        self._limit = limit
        self._held = bytearray()
        self._cut = 0

    def feed(self, chunk: bytes) -> bytes:
        """Return the lines that *chunk* completes, cleaned, each ended by a line feed."""
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        if not end:
            self._hold(chunk)
            return b""
        if self._held or self._cut:
            first = _ENDS.search(chunk)
            start = first.start() if first else end
            self._hold(chunk[:start])
            whole = self._finish() + chunk[start:end]
        else:
            whole = chunk[:end]
        self._hold(chunk[end:])
        return clean(whole)

    def flush(self) -> bytes:
        """Return the unfinished line, if there is one: the source has ended."""
        rest = self._finish()
        return clean(rest + b"\n") if rest else b""

    def _hold(self, text: bytes) -> None:
        room = self._limit - len(self._held)
        self._held += text[:room]
        self._cut += max(0, len(text) - room)

    def _finish(self) -> bytes:
        line = bytes(self._held)
        if self._cut:
            line += _CUT % self._cut
        self._held.clear()
        self._cut = 0
        return line


def clean(block: bytes) -> bytes:
    """Return *block* with line feeds as its only ends, without escape sequences and zeros.

    They could hide a word; other control characters are rare and are taken out of the lines that are read.
    """
    if b"\x1b" in block:
        block = _ESCAPES.sub(b"", block)
    if b"\r" in block:
        block = block.replace(b"\r", b"\n")
    return block.replace(b"\0", b"") if b"\0" in block else block


def text_of(line: bytes, limit: int = LINE_BYTES_MAX) -> str:
    """Return one line of a block as text without control characters, cut to *limit* bytes."""
    if len(line) > limit:
        line = line[:limit] + _CUT % (len(line) - limit)
    text = line.decode("utf-8", "replace")
    return text if text.isprintable() else text.translate(_CONTROLS)
