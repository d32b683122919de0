"""The daemon's floors: one small file, good until it says, bounded by the guard's own settings.

    sparkd-floors 1
    phase=capturing_graphs
    floor_bytes=2147483648
    until_s=81234.5          (CLOCK_MONOTONIC of this node)
    end

Without a valid lease the floor is the lowest of any phase (`floor`), so that a daemon that ends never
raises it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sparkd.guard.settings import Settings

HEAD, END = "sparkd-floors 1", "end"
_MAX_BYTES = 512
PHASE_MOST = 40
_REGULAR, _KIND = 0o100000, 0o170000


class Lease:
    """What the daemon asked for. `note`: why it is not in force, empty where it is."""

    __slots__ = ("floor", "note", "phase", "until_s")

    def __init__(self, floor: int, phase: str, until_s: float, note: str) -> None:
        self.floor, self.phase, self.until_s, self.note = floor, phase, until_s, note


def none(settings: Settings, note: str) -> Lease:
    """Return the default: the lowest floor of any phase."""
    return Lease(settings.floor, "", 0.0, note)


def parse(text: str, now: float, settings: Settings) -> Lease:
    """Return the lease that *text* spells, bounded; the default with a note where it spells none."""
    lines = text.splitlines()
    if lines[:1] != [HEAD] or END not in lines:
        return none(settings, "floors of the daemon refused: not in the form that this guard reads")
    fields = dict(line.split("=", 1) for line in lines[1 : lines.index(END)] if "=" in line)
    try:
        floor, until_s = int(fields["floor_bytes"]), float(fields["until_s"])
        phase = fields["phase"]
    except (KeyError, ValueError):
        return none(
            settings, "floors of the daemon refused: phase, floor_bytes or until_s is missing or malformed"
        )
    word = phase.isascii() and phase.replace("_", "").isalpha() and len(phase) <= PHASE_MOST
    if not word or not abs(until_s) < float("inf"):
        return none(settings, "floors of the daemon refused: the phase is no word, or until_s no number")
    until_s = min(until_s, now + settings.lease_most_s)
    if until_s <= now:
        return none(settings, "floors of the daemon have expired")
    return Lease(min(max(floor, settings.floor), settings.floor_most), phase, until_s, "")


class LeaseFile:
    """The file, read when it has changed. It must be a plain file: nothing here may block."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._seen = (0, 0)
        self.lease = none(settings, "the daemon has given no floors")

    def refresh(self, now: float) -> None:
        """Look whether there are newer floors, and whether those in force have expired."""
        if self.lease.until_s and self.lease.until_s <= now:
            self.lease = none(self._settings, "floors of the daemon have expired")
        try:
            found = os.stat(self._settings.lease, follow_symlinks=False)
        except OSError:
            return  # the daemon is away: what it said last is good until it said
        if (found.st_mtime_ns, found.st_ino) == self._seen:
            return
        self._seen = (found.st_mtime_ns, found.st_ino)
        if found.st_mode & _KIND == _REGULAR:
            self.lease = self._read(now)

    def _read(self, now: float) -> Lease:
        try:
            fd = os.open(self._settings.lease, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            return none(self._settings, f"floors of the daemon cannot be read: {error.strerror}")
        try:
            text = os.read(fd, _MAX_BYTES).decode("ascii", "replace")
        except OSError as error:
            return none(self._settings, f"floors of the daemon cannot be read: {error.strerror}")
        finally:
            os.close(fd)
        return parse(text, now, self._settings)
