"""The files in the run directory: whole, exact, and refused where they are not."""

from __future__ import annotations

import pytest

from sparkd.adapters import launch as files
from sparkd.adapters.launch import Launch, LaunchError
from sparkd.adapters.unitfacts import Ending
from sparkd.words import NO_STAMP, CudaGraph, Settings, Stamp, UnitName

SERVE = UnitName.SERVE
SETTINGS = Settings(ray_memory_threshold=None, kv_cache_bytes=44 << 30, cudagraph=CudaGraph.PIECEWISE)


def test_an_order_comes_back_as_it_was_given(tmp_path) -> None:
    order = Launch(SERVE, Stamp(4, 15), SETTINGS, "abc")
    assert files.read_launch(tmp_path, SERVE) is None
    files.write_launch(tmp_path, order)
    assert files.read_launch(tmp_path, SERVE) == order
    assert files.launch_path(tmp_path, SERVE).stat().st_mode & 0o777 == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["launch-serve.json"]
    files.remove_launch(tmp_path, SERVE)
    files.remove_launch(tmp_path, SERVE)
    assert files.read_launch(tmp_path, SERVE) is None


def test_an_order_holds_stamp_and_settings_only(tmp_path) -> None:
    files.write_launch(tmp_path, Launch(SERVE, Stamp(4, 15), SETTINGS, "abc"))
    import json

    text = json.loads(files.launch_path(tmp_path, SERVE).read_text(encoding="utf-8"))
    assert set(text) == {"unit", "stamp", "settings", "digest"}
    assert set(text["settings"]) <= set(Settings.__dataclass_fields__)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"unit": "serve", "stamp": [4, 15], "settings": {"gpu_memory_utilization": 7}, "digest": "a"}',
        '{"unit": "serve", "stamp": [4, -1], "settings": {}, "digest": "a"}',
        '{"unit": "serve", "stamp": [4, 15], "settings": {}, "digest": "a", "argv": ["rm"]}',
        "[" * 4000,
        "x" * 5000,
    ],
)
def test_what_cannot_be_understood_is_refused(tmp_path, text) -> None:
    files.launch_path(tmp_path, SERVE).write_text(text, encoding="utf-8")
    with pytest.raises(LaunchError, match=r"launch-serve\.json"):
        files.read_launch(tmp_path, SERVE)


def test_a_link_in_the_place_of_the_new_file_is_not_followed(tmp_path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept", encoding="utf-8")
    (tmp_path / ".launch-serve.json.new").symlink_to(precious)
    with pytest.raises(OSError):
        files.write_launch(tmp_path, Launch(SERVE, Stamp(1, 1), Settings(), "a"))
    assert precious.read_text(encoding="utf-8") == "kept"


def test_the_last_stamp_that_ran(tmp_path) -> None:
    (tmp_path / "serve").mkdir()
    assert files.read_ran(tmp_path, SERVE) == (NO_STAMP, "")
    files.write_ran(tmp_path, SERVE, Stamp(4, 15), "cafe")
    assert files.read_ran(tmp_path, SERVE) == (Stamp(4, 15), "cafe")
    for text in ("", "4 15", "four 15 cafe", "-4 15 cafe", "4 ² cafe"):
        (tmp_path / "serve/ran").write_text(text, encoding="utf-8")
        with pytest.raises(LaunchError):
            files.read_ran(tmp_path, SERVE)


@pytest.mark.parametrize(
    ("text", "ending"),
    [
        ("cafe success exited 0", Ending(code=0)),
        ("cafe exit-code exited 7", Ending(code=7)),
        ("cafe signal killed KILL", Ending(signal=9)),
        ("cafe core-dump dumped SEGV", Ending(signal=11)),
        ("cafe signal killed WHAT", Ending()),
        ("beef success exited 0", None),
        ("cafe success exited", None),
        ("", None),
    ],
)
def test_how_an_invocation_ended(tmp_path, text, ending) -> None:
    (tmp_path / "serve").mkdir()
    (tmp_path / "serve/exit").write_text(text, encoding="utf-8")
    assert files.read_exit(tmp_path, SERVE, "cafe") == ending
