"""What a launch needs, checked in real directories."""

from __future__ import annotations

import asyncio
import ctypes
import json
import mmap
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.large import sized_large
from sparkd.adapters.model_files import LocalModel, short_bytes
from sparkd.adapters.model_headers import read_checkpoint
from sparkd.core.events import ModelChecked
from sparkd.sizing.sized import Sized

NOW = 2_000_000_000.0
READY = ModelChecked(ready=True)


def safetensors(data: int = 1000) -> bytes:
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "w": {"dtype": "BF16", "shape": [data // 2], "data_offsets": [0, data]},
        }
    ).encode()
    return len(header).to_bytes(8, "little") + header + bytes(data)


class Disk:
    """A model directory and an engine's PATH; files are old unless said otherwise."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "model"
        self.bin = tmp_path / "bin"
        self.root.mkdir()
        self.bin.mkdir()
        for name in ("vllm", "ray"):
            (self.bin / name).touch(mode=0o755)
        self.put("config.json", b"{}")
        self.model = self.open()

    def open(
        self, model: str = "", programs: tuple[str, ...] = ("vllm", "ray"), **options: object
    ) -> LocalModel:
        return LocalModel(model or str(self.root), programs, str(self.bin), wall=lambda: NOW, **options)

    def put(self, name: str, content: bytes, age_s: float = 3600.0) -> None:
        path = self.root / name
        path.write_bytes(content)
        os.utime(path, (NOW - age_s, NOW - age_s))

    def shards(
        self, count: int = 3, index: str = "model.safetensors.index.json", suffix: str = "safetensors"
    ):
        names = [f"model-{n:05d}-of-{count:05d}.{suffix}" for n in range(1, count + 1)]
        weights = {f"layer.{n}.{part}": name for n, name in enumerate(names) for part in "ab"}
        self.put(index, json.dumps({"weight_map": weights}).encode())
        for name in names:
            self.put(name, safetensors())
        return names

    def check(self, model: LocalModel | None = None) -> ModelChecked:
        return asyncio.run((model or self.model).check())

    def reason(self) -> str:
        checked = self.check()
        assert not checked.ready
        return checked.reason


@pytest.fixture
def disk(tmp_path) -> Disk:
    return Disk(tmp_path)


def test_a_whole_model_is_ready(disk) -> None:
    disk.shards()
    assert disk.check() == READY


def test_a_single_file_and_bin_shards_are_ready(disk) -> None:
    disk.put("model.safetensors", safetensors())
    assert disk.check() == READY
    (disk.root / "model.safetensors").unlink()
    disk.shards(2, "pytorch_model.bin.index.json", "bin")
    assert disk.check() == READY


def test_missing_shards_are_counted(disk) -> None:
    names = disk.shards(39)
    for name in names[5:8]:
        (disk.root / name).unlink()
    assert disk.reason() == "model_incomplete: 3 of 39 missing: " + ", ".join(names[5:8])
    (disk.root / names[9]).rename(disk.root / (names[9] + ".part"))
    assert disk.reason() == f"model_incomplete: 4 of 39 missing: {', '.join(names[5:8])} and 1 more"


def test_a_short_shard_is_still_copying(disk) -> None:
    name = disk.shards()[1]
    disk.put(name, safetensors()[:-100])
    assert disk.reason() == f"model_incomplete: 1 of 3 short: {name} by 100 bytes"
    disk.put(name, safetensors()[:40])
    assert "1 of 3 short" in disk.reason()
    disk.put(name, b"")
    assert disk.reason() == f"model_incomplete: 1 of 3 short: {name} by 8 bytes"
    disk.put(name, safetensors())
    assert disk.reason().startswith("model_growing"), "it has changed since the last check"
    assert disk.check() == READY


@pytest.mark.parametrize(
    "content",
    [
        b"\xff" * 5000,
        (900).to_bytes(8, "little") + b"\x00" * 4000,
        (2).to_bytes(8, "little") + b"[]" + b"x" * 100,
        (17).to_bytes(8, "little") + b'{"w":{"shape":1}}' + b"x" * 9,
        (35).to_bytes(8, "little") + b'{"w":{"data_offsets":["a","b"]}}   ' + b"x",
    ],
)
def test_a_senseless_header_of_full_size_is_the_engines_to_name(disk, content) -> None:
    disk.put("model.safetensors", content)
    assert disk.check() == READY


def test_a_file_that_changes_is_waited_for(disk) -> None:
    disk.put("model.safetensors", safetensors(), age_s=1.0)
    assert disk.reason() == "model_growing: 1 of 1 still change: model.safetensors"
    assert disk.check() == READY, "unchanged since the last check"
    disk.put("model.safetensors", safetensors(2000), age_s=0.5)
    assert disk.reason().startswith("model_growing")
    assert disk.check() == READY


def test_a_file_from_the_future_is_judged_by_change_only(disk) -> None:
    disk.put("model.safetensors", safetensors(), age_s=-9999.0)
    assert disk.reason().startswith("model_growing")
    assert disk.check() == READY


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b"[]", b"\xff\xff", b"[" * 50_000])
def test_json_that_is_not_whole_is_waited_for(disk, content) -> None:
    disk.shards()
    disk.put("model.safetensors.index.json", content)
    assert disk.reason() == "model_incomplete: model.safetensors.index.json is not whole"
    disk.put("config.json", content)
    assert disk.reason() == "model_incomplete: config.json is missing or not whole"


def test_shards_that_came_before_their_index_are_counted_by_their_numbers(disk) -> None:
    disk.put("model-00002-of-00003.safetensors", safetensors())
    assert disk.reason().startswith("model_incomplete: 2 of 3 missing: model-00001-of-00003.safetensors")


def test_no_weights_no_directory_no_config(disk, tmp_path) -> None:
    assert disk.reason().startswith("model_incomplete: no weights")
    (disk.root / "config.json").unlink()
    assert disk.reason() == "model_incomplete: config.json is missing or not whole"
    gone = disk.check(disk.open(str(tmp_path / "none")))
    assert gone == ModelChecked(ready=False, reason=f"model_missing: {tmp_path}/none is not a directory")


def test_strange_names_in_an_index_are_missing_files(disk) -> None:
    disk.put(
        "model.safetensors.index.json",
        json.dumps({"weight_map": {"a": "x\0y", "b": 5, "c": "../z"}}).encode(),
    )
    assert disk.reason().startswith("model_incomplete: 2 of 2 missing")


def test_programs_must_be_executable(disk) -> None:
    disk.shards()
    assert disk.check(disk.open(programs=(str(disk.bin / "vllm"),))) == READY
    (disk.bin / "ray").chmod(0o644)
    assert disk.reason() == f"program_missing: ray is not an executable file (PATH {disk.bin})"
    (disk.bin / "vllm").unlink()
    assert disk.reason().startswith("program_missing: vllm, ray is not")
    assert not disk.check(disk.open(programs=("/no/such/vllm",))).ready


def test_a_hub_id_is_said_clearly(disk) -> None:
    refused = disk.check(disk.open("org/model"))
    assert not refused.ready and refused.reason.startswith("model_not_local: org/model")
    allowed = disk.check(disk.open("org/model", hub_allowed=True))
    assert allowed.ready and allowed.reason.startswith("hub_id: org/model")


def test_only_headers_are_read(disk, monkeypatch) -> None:
    disk.shards()
    amounts = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: (amounts.append(size), pread(fd, size, at))[1])
    assert disk.check() == READY
    assert len(amounts) == 6 and max(amounts) < 200
    assert disk.check() == READY
    assert len(amounts) == 6, "a file that has not changed is not read again"


def test_a_file_system_that_does_not_answer_is_said_and_not_asked_twice(disk, monkeypatch) -> None:
    disk.put("model.safetensors", safetensors())
    released, entered = threading.Event(), []
    model = disk.open(deadline_s=0.05)
    look = model._check

    def slow() -> ModelChecked:
        entered.append(1)
        released.wait(20)
        return look()

    monkeypatch.setattr(model, "_check", slow)

    async def scenario() -> None:
        try:
            for _ in range(2):
                checked = await model.check()
                assert checked == ModelChecked(ready=False, reason="model_unreadable: no answer in 0.05 s")
        finally:
            released.set()
        model._deadline_s = 20.0
        assert await model.check() == READY

    asyncio.run(scenario())
    assert len(entered) == 1


@given(st.binary(max_size=400))
def test_any_header_is_read_without_error(tmp_path_factory, content) -> None:
    path = tmp_path_factory.mktemp("shard") / "x.safetensors"
    path.write_bytes(content)
    assert short_bytes(path, len(content)) >= 0


def test_a_model_is_sized_once_and_anew_where_its_files_change(disk) -> None:
    asked = []

    def size(folder: Path) -> Sized:
        asked.append(folder)
        return sized_large(50.0 + len(asked))

    model = disk.open(size=size)
    name = disk.shards()[1]
    first = disk.check(model)
    assert first.model is not None and first.model is disk.check(model).model
    assert asked == [disk.root]

    disk.put(name, safetensors(2000))
    assert disk.check(model).model is None, "what still grows is not sized"
    assert disk.check(model).model == sized_large(52.0)
    assert asked == [disk.root] * 2


def test_a_model_that_cannot_be_sized_is_ready_all_the_same(disk) -> None:
    disk.shards()
    assert disk.check(disk.open(size=lambda _folder: None)) == READY


def resident(path: Path) -> int:
    """Return how many of a file's pages are in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    size = path.stat().st_size
    with path.open("rb") as file:
        at = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    found = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    assert libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), found) == 0
    libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
    return sum(entry & 1 for entry in found)


def test_neither_the_check_nor_the_sizing_fills_the_page_cache_and_eviction_empties_it(tmp_path) -> None:
    """On a file system with a page cache; one that keeps everything in memory cannot drop anything."""
    disk = Disk(tmp_path)
    path, size = disk.root / "model.safetensors", 8 << 20
    disk.put(path.name, safetensors(size))
    os.sync()
    asyncio.run(disk.model.evict())
    if resident(path):
        pytest.skip("this file system keeps its pages")
    model = disk.open(size=lambda folder: read_checkpoint(folder) and None)

    assert disk.check(model) == READY
    assert resident(path) <= 2, "headers alone were read, and given back"

    path.read_bytes()
    assert resident(path) > size // mmap.PAGESIZE // 2
    asyncio.run(model.evict())
    assert resident(path) == 0


def test_what_is_no_directory_has_no_pages_to_drop(disk) -> None:
    asyncio.run(disk.open("org/model").evict())
    with pytest.raises(FileNotFoundError):
        asyncio.run(disk.open(str(disk.root / "none")).evict())
