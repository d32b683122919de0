"""What a local model directory says of itself: configuration, quantisation, and the tensors of its headers.

Only headers are read: `sparkctl plan` may not fill the page cache that the launch after it needs. What cannot
be used is an error that names the file and what to do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

from sparkd.adapters.safetensors_header import HEADER_MAX_BYTES, open_quietly, read_header
from sparkd.sizing.model import ITEM_BYTES, Checkpoint, Tensor

INDEX = "model.safetensors.index.json"
JSON_MAX_BYTES = 64 << 20
_NAMED_MAX = 3


class ModelHeadersError(Exception):
    """A model directory that cannot be sized; the text names the file and says what to do."""


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read what the directory says. Raises ModelHeadersError."""
    try:
        return _read(folder)
    except OSError as error:
        raise ModelHeadersError(f"{error.filename or folder}: {error.strerror}") from error


def _read(folder: Path) -> Checkpoint:
    if not folder.is_dir():
        raise ModelHeadersError(f"{folder}: not a directory; give the folder that holds config.json")
    config = _object(folder / "config.json")
    if config is None:
        raise ModelHeadersError(f"{folder}/config.json: is not there; give the folder of a model")
    files = _files(folder)
    tensors: dict[str, Tensor] = {}
    for path in files:
        tensors |= {tensor.name: tensor for tensor in _tensors(path)}
    return Checkpoint(
        config=config,
        tensors=tuple(tensors.values()),
        file_bytes=tuple(path.stat().st_size for path in files),
        quantization=_object(folder / "hf_quant_config.json") or {},
    )


def _files(folder: Path) -> list[Path]:
    """Return the weight files: those of the index, else all; a second copy in another form is left out."""
    index = _object(folder / INDEX)
    if index is not None:
        listed = index.get("weight_map")
        values = listed.values() if isinstance(listed, dict) else ()
        names = sorted({name for name in values if isinstance(name, str)})
        if not names:
            raise ModelHeadersError(f"{folder}/{INDEX}: its weight_map names no files; fetch it again")
        return [folder / _plain(folder, name) for name in _there(folder, names)]
    found = sorted(folder.glob("*.safetensors"))
    parts = [path for path in found if not path.name.startswith("consolidated")] or found
    if not parts:
        raise ModelHeadersError(
            f"{folder}: no safetensors files; the headers of other formats do not tell the sizes of tensors"
        )
    return parts


def _plain(folder: Path, name: str) -> str:
    if "/" in name or "\0" in name:
        raise ModelHeadersError(
            f"{folder}/{INDEX}: names the file {name!r} outside the folder; fetch it again"
        )
    return name


def _there(folder: Path, names: list[str]) -> list[str]:
    lost = [name for name in names if "\0" in name or not (folder / name).is_file()]
    if lost:
        more = f" and {len(lost) - _NAMED_MAX} more" if len(lost) > _NAMED_MAX else ""
        told = ", ".join(lost[:_NAMED_MAX]) + more
        raise ModelHeadersError(f"{folder}: {len(lost)} of {len(names)} weight files are missing: {told}")
    return names


def _tensors(path: Path) -> Iterator[Tensor]:
    header = read_header(path)
    size = path.stat().st_size
    if header.missing or 8 + header.length > size:
        raise ModelHeadersError(f"{path}: ends within its header; it is being copied, or fetch it again")
    if header.length > HEADER_MAX_BYTES:
        raise ModelHeadersError(f"{path}: is no safetensors file (a header of {header.length} bytes)")
    table = _parsed(header.text)
    if table is None:
        raise ModelHeadersError(f"{path}: its header is damaged (no JSON object); fetch it again")
    for name, entry in table.items():
        if name != "__metadata__":
            yield _tensor(path, name, entry, size - 8 - header.length)


def _tensor(path: Path, name: str, entry: Any, data_bytes: int) -> Tensor:
    """One entry, checked against itself: its extents and type must give the bytes that it claims."""
    if not isinstance(entry, dict):
        raise ModelHeadersError(f"{path}: its header is damaged at {name!r}; fetch it again")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not (_numbers(shape) and _numbers(offsets) and len(offsets) == 2):
        raise ModelHeadersError(f"{path}: its header is damaged at {name!r}; fetch it again")
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise ModelHeadersError(f"{path}: {name!r} has the type {dtype!r}, whose size is not known here")
    tensor = Tensor(name, dtype, tuple(shape))
    if tensor.bytes != offsets[1] - offsets[0]:
        raise ModelHeadersError(f"{path}: {name!r} claims more or fewer bytes than it has; fetch it again")
    if offsets[1] > data_bytes:
        missing = offsets[1] - data_bytes
        raise ModelHeadersError(f"{path}: {missing} bytes short; it is being copied, or fetch it again")
    return tensor


def _numbers(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)


def _object(path: Path) -> dict[str, Any] | None:
    """Return a JSON object, None where the file is not there."""
    try:
        fd = open_quietly(path)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as file:
        text = file.read(JSON_MAX_BYTES + 1)
    value = _parsed(text) if len(text) <= JSON_MAX_BYTES else None
    if value is None:
        raise ModelHeadersError(
            f"{path}: is no JSON object, or not whole; it is being copied, or fetch it again"
        )
    return value


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
