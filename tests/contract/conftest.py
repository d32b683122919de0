"""Worlds for the tests of units: `play` runs a scenario on both backends, `on_systemd` on systemd alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from contract.units_world import World, node_of, place
from lab import nspawn

Play = Callable[[Callable[[World], Awaitable[None]]], None]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Callable[[], tuple[Path, nspawn.Node]]]:
    """A node, booted for the first who asks and given back at the end."""
    with ExitStack() as stack:
        made: list[tuple[Path, nspawn.Node]] = []

        def node() -> tuple[Path, nspawn.Node]:
            if not made:
                at = stack.enter_context(place())
                made.append((at, stack.enter_context(node_of(at))))
            return made[0]

        yield node


@pytest.fixture
def on_systemd(nodes, tmp_path) -> Play:
    if why := nspawn.missing():
        pytest.skip(why)

    def play(scenario: Callable[[World], Awaitable[None]]) -> None:
        at, node = nodes()
        asyncio.run(_play(at, node, tmp_path, scenario))

    return play


@pytest.fixture(params=["children", "systemd"])
def play(request, tmp_path) -> Play:
    """Run a scenario in a world of its own."""
    if request.param == "systemd":
        return request.getfixturevalue("on_systemd")

    def on_children(scenario: Callable[[World], Awaitable[None]]) -> None:
        with place() as at:
            asyncio.run(_play(at, None, tmp_path, scenario))

    return on_children


async def _play(
    at: Path, node: nspawn.Node | None, tmp: Path, scenario: Callable[[World], Awaitable[None]]
) -> None:
    world = World(at, node, tmp)
    try:
        await asyncio.wait_for(scenario(world), 90)
    finally:
        await world.close()
