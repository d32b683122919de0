"""The model's files where the daemon sees nothing: the real unit in a node, what is made of its answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from contract.units_world import World
from sizing.large import sized_large
from sparkd.adapters import files_note
from sparkd.adapters.files_note import Asked, Found, Look, read_asked, read_found, write_asked, write_found
from sparkd.adapters.model_unit import ModelByUnit
from sparkd.core.events import ModelChecked

NUMBER = "0123456789abcdef"
HIDDEN = ModelChecked(ready=False, reason="model_missing: /home/x/model is not a directory")


class Own:
    """The daemon's own eyes."""

    def __init__(self, seen: ModelChecked = HIDDEN) -> None:
        self.seen, self.evicted = seen, 0

    async def check(self) -> ModelChecked:
        return self.seen

    async def evict(self) -> None:
        self.evicted += 1


def test_question_and_answer_come_back_as_they_were_given(tmp_path) -> None:
    (tmp_path / "files").mkdir()
    write_asked(tmp_path, Asked(NUMBER, evict=True))
    assert read_asked(tmp_path) == Asked(NUMBER, evict=True)

    model = sized_large(60)
    found = Found(
        NUMBER,
        ready=True,
        looks=(Look("/srv/model/a.safetensors", 10, 1_700_000_000_000_000_000, 0),),
        file_bytes=model.checkpoint.file_bytes,
        weights=model.weights,
        config=dict(model.checkpoint.config),
    )
    write_found(tmp_path, found)
    assert read_found(tmp_path) == found
    assert read_found(tmp_path).sized(model.layout, model.options) == model
    assert Found(NUMBER, ready=False).sized(model.layout, model.options) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        json.dumps({"number": NUMBER}),
        json.dumps({"number": "x", "ready": True}),
        json.dumps({"number": NUMBER, "ready": True, "file_bytes": [-1]}),
        json.dumps({"number": NUMBER, "ready": True, "config": []}),
        json.dumps({"number": NUMBER, "ready": True, "weights": {"bytes": "9", "least_bytes": 1}}),
        "[" * 5000,
        " " * (files_note.SIZE_MAX + 1),
    ],
)
def test_of_an_answer_nothing_is_believed_that_is_not_within_bounds(tmp_path, text) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "found.json").write_text(text)
    with pytest.raises(ValueError, match=r"found\.json"):
        read_found(tmp_path)


def test_what_the_daemon_sees_itself_is_not_asked_for(tmp_path) -> None:
    async def scenario() -> None:
        for seen in (ModelChecked(ready=True), ModelChecked(ready=False, reason="model_growing: 1 of 2")):
            own = Own(seen)
            model = ModelByUnit(own, tmp_path, lambda _: None, bus_address=f"unix:path={tmp_path}/none")
            assert await model.check() == seen
            await model.evict()
            assert own.evicted == 1
            assert list(tmp_path.iterdir()) == []
            await model.close()

    asyncio.run(scenario())


def put(world: World, folder: str) -> Path:
    """Put a model where only the engine's user may enter."""
    root = world.node.path(folder)
    root.mkdir(parents=True, exist_ok=True)
    (root / "config.json").write_text("{}")
    (root / "model.bin").write_bytes(bytes(4096))
    world.node.run("touch", "-d", "2020-01-01", f"{folder}/model.bin", f"{folder}/config.json")
    world.node.run("chown", "-R", "sparkd-engine:", folder)
    world.node.run("chmod", "0700", folder)
    return root


@pytest.mark.nodes
@pytest.mark.process
def test_the_unit_sees_what_the_daemon_may_not(on_systemd) -> None:
    async def scenario(world: World) -> None:
        model = ModelByUnit(
            Own(),
            world.node.path("/run/sparkd"),
            lambda _: None,
            bus_address=f"unix:path={world.node.path('/run/dbus/system_bus_socket')}",
        )
        root = put(world, "/srv/model")
        seen = await model.check()
        assert (seen.reason, seen.ready) == ("", True)
        await model.evict()
        assert read_found(world.node.path("/run/sparkd")).looks[0].path == "/srv/model/model.bin"
        (root / "config.json").unlink()
        lacking = await model.check()
        assert (lacking.ready, lacking.reason.partition(":")[0]) == (False, "model_incomplete")
        (root / "config.json").write_text("{}")
        assert await model.check() == lacking, "who waits asks a few times a minute"
        await model.close()

    on_systemd(scenario)
