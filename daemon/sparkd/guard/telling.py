"""What the guard tells: a status file written in place, durable records of trips, lines for the journal.

The status is one JSON object that is written over itself, in place and to its longest length so far: next
to nothing is allocated for it, and it is there when memory is not. It begins and ends with the same number;
a reader that finds two different ones reads again. A record is written into a file that was laid out
before, so that a full disk cannot stop it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STATUS_BYTES = 16384
RECORD_BYTES = 1 << 18
RECORDS_KEPT = 16
VERSION = 1
_ESCAPES = {'"': '\\"', "\\": "\\\\"}


def _quoted(text: str) -> str:
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    quoted = (_ESCAPES.get(c) or (c if " " <= c <= "~" else _escape(c)) for c in text)
    return f'"{"".join(quoted)}"'


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def as_json(value: Any) -> str:
    """Return JSON of dicts, lists, strings, numbers, None. The json module is too large."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float):
        return "null" if not abs(value) < float("inf") else repr(round(value, 6))
    if isinstance(value, int):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_json(str(key))}: {as_json(item)}" for key, item in value.items()) + "}"
    return "[" + ", ".join(as_json(item) for item in value) + "]"


def plain(data: bytes) -> str:
    """Return a process's own bytes as text."""
    return data.decode("utf-8", "replace").encode("ascii", "backslashreplace").decode()


class StatusFile:
    """The status, at a fixed place. Held locked: one guard a node."""

    def __init__(self, path: str) -> None:
        """Make it. Raises OSError where it cannot be made, BlockingIOError where another guard holds it."""
        import fcntl

        folder = path.rpartition("/")[0] or "/"
        os.makedirs(folder, mode=0o755, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise
        os.ftruncate(self._fd, 0)
        self._number = self._longest = 0

    def write(self, status: dict[str, Any]) -> bool:
        """Write *status* over the last one; False where it does not fit or cannot be written."""
        self._number += 1
        text = as_json({"seq": self._number, "version": VERSION} | status | {"seq_end": self._number})
        if len(text) >= STATUS_BYTES:
            return False
        self._longest = max(self._longest, len(text))
        try:
            os.pwrite(self._fd, (text.ljust(self._longest) + "\n").encode("ascii"), 0)
        except OSError:
            return False
        return True


class Records:
    """The directory of trips: `trip-<ms>.json`, the newest `RECORDS_KEPT`, and one laid out ahead."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._spare = f"{folder}/next"
        self.note = ""

    def prepare(self) -> None:
        """Lay the next record out, so that writing it needs no space. What cannot be is noted."""
        try:
            os.makedirs(self._folder, mode=0o755, exist_ok=True)
            fd = os.open(
                self._spare, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644
            )
            try:
                for _ in range(RECORD_BYTES // STATUS_BYTES):
                    _write(fd, b" " * STATUS_BYTES)
                os.fsync(fd)
            finally:
                os.close(fd)
            self._sync_folder()
            self.note = ""
        except OSError as error:
            self.note = f"records of trips cannot be written to {self._folder}: {error.strerror}"

    def write(self, name: str, record: dict[str, Any]) -> str:
        """Make the record durable; return its path, empty where that failed (`note` says why)."""
        text = as_json(record).encode("ascii")[: RECORD_BYTES - 1] + b"\n"
        path = f"{self._folder}/trip-{name}.json"
        try:
            fd = os.open(self._spare, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                _write(fd, text)
                os.ftruncate(fd, len(text))
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(self._spare, path)
            self._sync_folder()
        except OSError as error:
            self.note = f"the record of trip {name} could not be written to {self._folder}: {error.strerror}"
            return ""
        self._forget_old()
        self.prepare()
        return path

    def _forget_old(self) -> None:
        names = sorted(name for name in os.listdir(self._folder) if name.startswith("trip-"))
        for name in names[:-RECORDS_KEPT]:
            os.unlink(f"{self._folder}/{name}")

    def _sync_folder(self) -> None:
        fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _write(fd: int, content: bytes) -> None:
    while content:
        content = content[os.write(fd, content) :]


class Notes:
    """What an operator should know, one sentence a kind."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def note(self, kind: str, text: str) -> None:
        """Keep *text* under its kind, and say it when it is new; empty text takes it back."""
        if text and self._texts.get(kind) != text:
            say(text)
        if text:
            self._texts[kind] = text
        else:
            self._texts.pop(kind, None)

    def texts(self) -> list[str]:
        """Return all of them."""
        return list(self._texts.values())


def say(text: str) -> None:
    """Write one line for the journal; a reader that is gone is no reason to end."""
    try:
        os.write(2, f"sparkd-guard: {text}\n".encode("utf-8", "replace"))
    except OSError:
        return


def gib(count: float) -> str:
    """Return bytes as people say them."""
    return f"{count / (1 << 30):.2f} GiB"


def read_line(path: str) -> str:
    """Return the first line of a small file, empty where it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, 256).partition(b"\n")[0].decode("ascii", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)


class Systemd:
    """The service manager, where there is one that listens (sd_notify(3))."""

    def __init__(self, address: str) -> None:
        """Take NOTIFY_SOCKET; empty = nobody listens."""
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket: Any = None
        if address:
            import _socket  # the socket module proper costs more memory than all of this

            self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    def tell(self, text: str) -> None:
        """Send *text*, as far as somebody listens."""
        if self._socket is not None:
            try:
                self._socket.sendto(text.encode(), self._address)
            except OSError:
                return
