"""Reading a model directory: headers alone, true to the file, and bad files refused by name."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing import checkpoints
from sparkd.adapters import safetensors_header
from sparkd.adapters.model_headers import INDEX, ModelHeadersError, read_checkpoint
from sparkd.adapters.safetensors_header import read_header


@pytest.fixture
def model(tmp_path) -> Path:
    return checkpoints.write(tmp_path / "model", *checkpoints.llama(layers=1), shards=3)


def refusal(folder: Path) -> str:
    with pytest.raises(ModelHeadersError) as raised:
        read_checkpoint(folder)
    return str(raised.value)


def first(model: Path) -> Path:
    return min(model.glob("*.safetensors"))


def put_header(path: Path, table: object, data: int = 64) -> None:
    text = json.dumps(table).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(data))


def test_what_the_headers_say_is_what_was_written(model) -> None:
    config, tensors = checkpoints.llama(layers=1)
    found = read_checkpoint(model)
    assert sorted(found.tensors) == sorted(tensors)
    assert found.config == config and found.architecture == "LlamaForCausalLM"
    assert len(found.file_bytes) == 3 and sum(found.file_bytes) > found.tensor_bytes


def test_only_headers_are_read_and_their_pages_are_given_back(model, monkeypatch) -> None:
    amounts, advice, flags = [], [], []
    pread, fadvise, opened = os.pread, os.posix_fadvise, os.open
    monkeypatch.setattr(os, "pread", lambda fd, n, at: (amounts.append(n), pread(fd, n, at))[1])
    monkeypatch.setattr(os, "posix_fadvise", lambda *a: (advice.append(a[3]), fadvise(*a))[1])
    monkeypatch.setattr(os, "open", lambda path, flag, *a: (flags.append(flag), opened(path, flag, *a))[1])
    read_checkpoint(model)
    assert sum(amounts) < 20_000 < sum(path.stat().st_size for path in model.glob("*.safetensors"))
    assert advice == [os.POSIX_FADV_RANDOM, os.POSIX_FADV_DONTNEED] * 3
    assert all(flag & os.O_NOATIME for flag in flags)


def test_a_file_of_somebody_else_is_read_with_its_access_time(model, monkeypatch) -> None:
    """O_NOATIME is the owner's."""
    opened = os.open

    def refuse(path: object, flag: int, *more: object) -> int:
        if flag & os.O_NOATIME:
            raise PermissionError(1, "Operation not permitted", str(path))
        return opened(path, flag, *more)

    monkeypatch.setattr(os, "open", refuse)
    assert read_checkpoint(model).tensors


def test_one_file_without_an_index(tmp_path) -> None:
    config, tensors = checkpoints.llama(layers=1)
    folder = checkpoints.write(tmp_path / "model", config, tensors, shards=1)
    (folder / INDEX).unlink()
    first(folder).rename(folder / "model.safetensors")
    checkpoints.write_shard(folder / "consolidated.safetensors", tensors)
    assert len(read_checkpoint(folder).tensors) == len(tensors)


def test_the_separate_file_of_quantisation(model) -> None:
    (model / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    assert read_checkpoint(model).scheme == {"quantization": {"quant_algo": "NVFP4"}}


def test_what_is_not_there_is_named(model, tmp_path) -> None:
    assert "not a directory" in refusal(tmp_path / "none")
    assert "config.json" in refusal(tmp_path)
    first(model).unlink()
    assert "1 of 3 weight files are missing: model-00001-of-00003.safetensors" in refusal(model)
    for path in model.glob("*.safetensors"):
        path.unlink()
    (model / INDEX).unlink()
    assert "no safetensors files" in refusal(model)


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b"[]", b"\xff\xff", b"[" * 50_000])
@pytest.mark.parametrize("name", ["config.json", INDEX, "hf_quant_config.json"])
def test_json_that_is_not_whole_is_named(model, name, content) -> None:
    (model / name).write_bytes(content)
    assert f"{model / name}: is no JSON object, or not whole" in refusal(model)


@pytest.mark.parametrize("listed", [{}, {"a": 5}, {"a": "../x.safetensors"}, {"a": "x\0y"}])
def test_a_strange_index_is_refused(model, listed) -> None:
    (model.parent / "x.safetensors").touch()
    (model / INDEX).write_text(json.dumps({"weight_map": listed}))
    assert f"{model}" in refusal(model)


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("text", "its header is damaged at 'w'"),
        ({"dtype": "BF16", "shape": [2]}, "its header is damaged at 'w'"),
        ({"dtype": "BF16", "shape": [-2], "data_offsets": [0, 4]}, "its header is damaged at 'w'"),
        ({"dtype": "BF16", "shape": [True], "data_offsets": [0, 2]}, "its header is damaged at 'w'"),
        ({"dtype": "BF16", "shape": [2], "data_offsets": [0, 4, 8]}, "its header is damaged at 'w'"),
        ({"dtype": "C128", "shape": [2], "data_offsets": [0, 32]}, "'w' has the type 'C128'"),
        ({"dtype": ["BF16"], "shape": [2], "data_offsets": [0, 4]}, "has the type"),
        ({"dtype": "BF16", "shape": [2], "data_offsets": [0, 8]}, "'w' claims more or fewer bytes"),
        ({"dtype": "BF16", "shape": [64], "data_offsets": [0, 128]}, "64 bytes short"),
    ],
)
def test_a_damaged_entry_is_named(model, entry, told) -> None:
    put_header(first(model), {"w": entry})
    assert f"{first(model)}: " in refusal(model) and told in refusal(model)


def test_a_damaged_file_is_named(model) -> None:
    path = first(model)
    path.write_bytes(b"\x00\x01")
    assert "ends within its header" in refusal(model)
    path.write_bytes((500).to_bytes(8, "little") + b"{}")
    assert "ends within its header" in refusal(model)
    path.write_bytes((4).to_bytes(8, "little") + b"[[]]")
    assert "no JSON object" in refusal(model)
    with path.open("wb") as file:
        file.write((200_000_000).to_bytes(8, "little"))
        file.truncate(300_000_000)
    assert "is no safetensors file" in refusal(model)


def test_an_unreadable_file_is_named(model, monkeypatch) -> None:
    def broken(path: Path) -> safetensors_header.Header:
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr("sparkd.adapters.model_headers.read_header", broken)
    assert refusal(model) == f"{first(model)}: Input/output error"


@settings(max_examples=60)
@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(tmp_path_factory, content) -> None:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(content)
    assert read_header(folder / "model.safetensors").text in content
    with pytest.raises(ModelHeadersError):
        read_checkpoint(folder)
    shutil.rmtree(folder)
