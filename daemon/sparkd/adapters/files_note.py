"""What the daemon and `sparkd files` (sparkd-files.service) say to each other, in the run directory.

- `files-asked.json`, the daemon's: a number, and whether pages are to be dropped.
- `files/found.json`, the unit's: the same number and what it has found. The engine's user writes it, so the
  daemon believes none of it but as values within their bounds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkd.files import replace_whole
from sparkd.sizing.model import Checkpoint, Layout, Options
from sparkd.sizing.sized import Sized
from sparkd.sizing.weights import Weights
from sparkd.wire.common import BYTES_MAX
from sparkd.wire.fields import Field, array, flag, integer, matching, optional, shape, text
from sparkd.wire.refusal import Refusal, WireError

SIZE_MAX = 4 << 20
"""Bytes of an answer at most: the largest config.json has some 10 KiB, a look at a file 200 bytes."""
FILES_MAX = 4096
_NUMBER = matching(r"[0-9a-f]{16}", 16)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the daemon asks; `number` tells answers apart."""

    number: str
    evict: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at a file showed; `short_bytes`: how much is missing at its end."""

    path: str
    size: int
    mtime_ns: int
    short_bytes: int


@dataclass(frozen=True, slots=True)
class Found:
    """What the unit answers; from `file_bytes` on: of the model, where it is sized."""

    number: str
    ready: bool
    reason: str = ""
    looks: tuple[Look, ...] = ()
    file_bytes: tuple[int, ...] = ()
    weights: Weights | None = None
    config: Mapping[str, Any] | None = None
    quantization: Mapping[str, Any] | None = None

    def sized(self, layout: Layout, options: Options) -> Sized | None:
        """Return the model as a daemon keeps it, None where the files do not say."""
        if self.weights is None:
            return None
        checkpoint = Checkpoint(self.config or {}, (), self.file_bytes, self.quantization or {})
        return Sized(checkpoint, self.weights, layout, options)


def _object(value: Any, _lenient: bool) -> dict[str, Any]:
    if type(value) is not dict:
        raise WireError(Refusal.WRONG_TYPE, "an object is expected")
    return value


_BYTES = integer(0, BYTES_MAX)
_ASKED = shape(Asked, {"number": _NUMBER, "evict": flag()})
_LOOK = shape(
    Look,
    {"path": text(4096), "size": _BYTES, "mtime_ns": integer(-(1 << 62), 1 << 62), "short_bytes": _BYTES},
)
_WEIGHTS = shape(
    Weights,
    {
        **dict.fromkeys(
            ("bytes", "least_bytes", "split_bytes", "whole_bytes", "derived_bytes", "layer_bytes"), _BYTES
        ),
        "unplaced": array(text(512), 1 << 17),
        "refusal": text(2000),
    },
)
_FOUND = shape(
    Found,
    {
        "number": _NUMBER,
        "ready": flag(),
        "reason": text(2000),
        "looks": array(_LOOK, FILES_MAX),
        "file_bytes": array(_BYTES, FILES_MAX),
        "weights": optional(_WEIGHTS),
        "config": Field(dict, _object),
        "quantization": Field(dict, _object),
    },
)


def write_asked(run_dir: Path, asked: Asked) -> None:
    """Replace what is asked. Raises OSError."""
    replace_whole(run_dir / "files-asked.json", json.dumps(_ASKED.encode(asked)).encode(), 0o644)


def read_asked(run_dir: Path) -> Asked:
    """Return what is asked. Raises OSError, ValueError."""
    asked: Asked = _decoded(_ASKED, run_dir / "files-asked.json")
    return asked


def write_found(run_dir: Path, found: Found) -> None:
    """Replace the answer. Raises OSError, WireError."""
    replace_whole(run_dir / "files" / "found.json", json.dumps(_FOUND.encode(found)).encode(), 0o644)


def read_found(run_dir: Path) -> Found:
    """Return the answer. Raises OSError, ValueError."""
    found: Found = _decoded(_FOUND, run_dir / "files" / "found.json")
    return found


def _decoded(field: Field, path: Path) -> Any:
    with path.open("rb") as file:
        data = file.read(SIZE_MAX + 1)
    if len(data) > SIZE_MAX:
        raise ValueError(f"{path}: is longer than {SIZE_MAX} bytes")
    try:
        return field.decode(json.loads(data), False)
    except (ValueError, RecursionError, WireError) as error:
        raise ValueError(f"{path}: {error}") from None
