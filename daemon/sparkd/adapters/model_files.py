"""What must be there before a launch: the programs, and every file of the model, whole and at rest.

Only what time can cure is a reason to wait: a file that is missing, shorter than its own header says, or
still growing. A file of full size whose header makes no sense is *ready*: the engine will name it, and the
judge escalates. Only headers are read, without read-ahead, so that the check does not fill the page cache.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkd.adapters.safetensors_header import HEADER_MAX_BYTES, open_quietly, read_header
from sparkd.core.events import ModelChecked
from sparkd.sizing.sized import Sized

# A copy touches its file more often than this; rsync and scp do so every few hundred milliseconds.
SETTLE_S = 5.0
# A network file system that has gone away answers never; the check must.
DEADLINE_S = 30.0
_JSON_MAX_BYTES = 64 << 20
_NAMED_MAX = 3
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.safetensors|\.bin)$")
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth")


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at a file showed; `short_bytes`: how much is missing at its end."""

    size: int
    mtime_ns: int
    short_bytes: int


class LocalModel:
    """The port `ModelFiles` over a local directory.

    Attributes:
        looks: what the last check saw of each file; the next one goes on from it.

    Args:
        model: the directory; anything that is not an absolute path is a hub id.
        programs: absolute, or names looked up in *path*.
        path: the engine's PATH.
        hub_allowed: whether the engine may fetch a hub id by itself.
        wall: seconds since the epoch, compared with modification times only.
        deadline_s: longest time of one check.
        size: what the files of a directory say of the memory that the model needs, None = they do not say;
            asked once for the same files.
    """

    def __init__(
        self,
        model: str,
        programs: Sequence[str],
        path: str,
        *,
        hub_allowed: bool = False,
        wall: Callable[[], float] = time.time,
        deadline_s: float = DEADLINE_S,
        size: Callable[[Path], Sized | None] = lambda _folder: None,
    ) -> None:
        self._model, self._programs, self._path = model, tuple(programs), path
        self._hub_allowed = hub_allowed
        self._wall = wall
        self._deadline_s = deadline_s
        self.looks: dict[Path, Look] = {}
        self._size, self._sized_files = size, dict[Path, Look]()
        self._sized: Sized | None = None
        self._running: asyncio.Task[ModelChecked] | None = None

    async def check(self) -> ModelChecked:
        """Return whether the programs and every file of the model are there and not growing.

        A check that hangs is not started a second time beside itself: threads are few.
        """
        if self._running is None:
            self._running = asyncio.create_task(asyncio.to_thread(self._check), name="model-check")
        done, _ = await asyncio.wait({self._running}, timeout=self._deadline_s)
        if not done:
            return ModelChecked(ready=False, reason=f"model_unreadable: no answer in {self._deadline_s:g} s")
        finished, self._running = self._running, None
        return finished.result()

    async def evict(self) -> None:
        """Have the kernel drop the weights' clean pages: on unified memory the next start needs the room.

        Needs no root, only that the files may be read. Raises OSError.
        """
        root = Path(self._model)
        if root.is_absolute():
            await asyncio.to_thread(_evict, root)

    async def close(self) -> None:
        """Release nothing: a check that hangs ends with the daemon."""

    def _check(self) -> ModelChecked:
        missing = [name for name in self._programs if shutil.which(name, path=self._path) is None]
        if missing:
            return _no("program_missing", f"{_names(missing)} is not an executable file (PATH {self._path})")
        root = Path(self._model)
        if not root.is_absolute():
            return self._check_hub_id()
        try:
            return self._check_directory(root)
        except OSError as error:
            return _no("model_unreadable", f"{error.filename or root}: {error.strerror}")

    def _check_hub_id(self) -> ModelChecked:
        if not self._hub_allowed:
            return _no("model_not_local", f"{self._model} is no absolute path, and fetching is not allowed")
        return ModelChecked(ready=True, reason=f"hub_id: {self._model} is not checked, the engine fetches it")

    def _check_directory(self, root: Path) -> ModelChecked:
        if not root.is_dir():
            return _no("model_missing", f"{root} is not a directory")
        if _json(root / "config.json") is None:
            return _no("model_incomplete", "config.json is missing or not whole")
        wanted, reason = _wanted(root)
        if reason:
            return _no("model_incomplete", reason)
        lost = [name for name in wanted if not (root / name).is_file()]
        if lost:
            return _no("model_incomplete", f"{len(lost)} of {len(wanted)} missing: {_names(lost)}")
        before, self.looks = self.looks, {}
        growing = [name for name in wanted if self._look(root / name, before)]
        short = {name: n for name in wanted if (n := self.looks[root / name].short_bytes)}
        if short:
            name, count = next(iter(short.items()))
            return _no("model_incomplete", f"{len(short)} of {len(wanted)} short: {name} by {count} bytes")
        if growing:
            return _no("model_growing", f"{len(growing)} of {len(wanted)} still change: {_names(growing)}")
        return ModelChecked(ready=True, model=self._sized_model(root))

    def _sized_model(self, root: Path) -> Sized | None:
        """Size the model anew where its files have changed: their headers are read once."""
        if self.looks != self._sized_files:
            self._sized, self._sized_files = self._size(root), dict(self.looks)
        return self._sized

    def _look(self, path: Path, before: dict[Path, Look]) -> bool:
        """Look at a file, at its header only where it has changed; return whether it is still growing."""
        stat, old = path.stat(), before.get(path)
        same = old is not None and (old.size, old.mtime_ns) == (stat.st_size, stat.st_mtime_ns)
        if old is not None and same:
            self.looks[path] = old
            return False
        short = short_bytes(path, stat.st_size) if path.suffix == ".safetensors" else 0
        self.looks[path] = Look(stat.st_size, stat.st_mtime_ns, short)
        return old is not None or self._wall() - stat.st_mtime < SETTLE_S


def _evict(root: Path) -> None:
    for entry in os.scandir(root):
        if entry.name.endswith(_WEIGHTS) and entry.is_file():
            fd = open_quietly(Path(entry.path))
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def short_bytes(path: Path, size: int) -> int:
    """Return how many bytes a safetensors file lacks of what its header says; 0 where it says nothing."""
    header = read_header(path)
    if header.missing:
        return header.missing
    if header.length > HEADER_MAX_BYTES:
        return 0
    if 8 + header.length > size:
        return 8 + header.length - size
    return max(8 + header.length + _data_end(header.text) - size, 0)


def _data_end(header: bytes) -> int:
    """Return where the data of the last tensor ends, 0 where the header does not say."""
    table = _parse(header)
    ends = [0]
    for entry in (table or {}).values():
        offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
        if isinstance(offsets, list) and len(offsets) == 2 and type(offsets[1]) is int:
            ends.append(offsets[1])
    return max(ends)


def _wanted(root: Path) -> tuple[list[str], str]:
    """Return the weight files that must be there, or why they cannot be told yet."""
    names = sorted(entry.name for entry in os.scandir(root))
    for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        if index not in names:
            continue
        table = _json(root / index)
        files = table.get("weight_map") if table else None
        if not isinstance(files, dict) or not files:
            return [], f"{index} is not whole"
        return sorted({name for name in files.values() if isinstance(name, str)}), ""
    for single in ("model.safetensors", "pytorch_model.bin"):
        if single in names:
            return [single], ""
    return _wanted_without_index([name for name in names if name.endswith(_WEIGHTS)])


def _wanted_without_index(names: Sequence[str]) -> tuple[list[str], str]:
    """Return the files of a model without index: those there, and those that their numbering implies."""
    if not names:
        return [], "no weights: neither an index nor a weight file is there"
    wanted = set(names)
    for match in filter(None, map(_PART.match, names)):
        stem, _, total, suffix = match.groups()
        wanted |= {f"{stem}-{number:05d}-of-{total}{suffix}" for number in range(1, int(total) + 1)}
    return sorted(wanted), ""


def _json(path: Path) -> dict[str, object] | None:
    """Return a JSON object, None where the file is missing or not (yet) whole."""
    try:
        with path.open("rb") as file:
            return _parse(file.read(_JSON_MAX_BYTES))
    except FileNotFoundError:
        return None


def _parse(text: bytes) -> dict[str, object] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _no(code: str, text: str) -> ModelChecked:
    return ModelChecked(ready=False, reason=f"{code}: {text}")


def _names(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more
