"""A daemon that starts anew beside an engine that still runs: it is taken over, and nobody notices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.world import MP, World, serving
from sparkd.core import commands as co
from sparkd.core import events as ev
from sparkd.core.beginning import Remembered
from sparkd.core.records import IncidentOpened, Kept, PhaseChanged, Verified
from sparkd.words import Phase, Settings, Stamp, UnitName


class Systemd(World):
    """A world in which units outlive their daemons; counts what is started and stopped."""

    def __init__(self, **policy: object) -> None:
        super().__init__(**policy)
        self.outlives = True
        self.starts: list[tuple[str, UnitName, Stamp]] = []
        self.stops: list[tuple[str, UnitName]] = []

    def _do_StartUnit(self, node, command: co.StartUnit) -> None:  # noqa: N802
        self.starts.append((node.name, command.unit, command.stamp))
        super()._do_StartUnit(node, command)

    def _do_StopUnit(self, node, command: co.StopUnit) -> None:  # noqa: N802
        self.stops.append((node.name, command.unit))
        super()._do_StopUnit(node, command)


BACKENDS = [{}, {"backend": MP}]


def reached(world: World, phase: Phase):
    return lambda: world.phase is phase


def in_phase(phase: Phase, **policy: object) -> Systemd:
    """Return a world whose first start has come to *phase*."""
    world = Systemd(**policy)
    world.run_until(reached(world, phase))
    world.run_for(0.5)
    assert world.phase is phase
    return world


def test_a_daemon_that_starts_anew_still_knows_what_the_engine_said_of_its_memory() -> None:
    """A failure after it is judged with the sizes of the cache, as one before it would have been."""
    world = in_phase(Phase.SERVING)
    said = world.head.state.coordinator.watch.said
    assert said.kv_cache_bytes
    for _ in range(2):
        world.restart_daemon("spark-a")
        world.run_until(reached(world, Phase.SERVING))
        assert world.head.state.coordinator.watch.said == said


@pytest.mark.parametrize("policy", BACKENDS, ids=["ray", "mp"])
@pytest.mark.parametrize(
    "names", [("spark-a",), ("spark-b",), ("spark-a", "spark-b"), ("spark-b", "spark-a")]
)
def test_a_daemon_that_starts_anew_changes_nothing_for_a_serving_engine(names, policy) -> None:
    world = in_phase(Phase.SERVING, **policy)
    starts, epoch = list(world.starts), world.head.state.coordinator.epoch
    for name in names:
        world.restart_daemon(name)
        world.run_for(0.05)
    world.run_until(serving(world), 10)
    world.run_for(300)
    lead = world.head.state.coordinator
    assert world.phase is Phase.SERVING
    assert (world.starts, world.stops, lead.generation) == (starts, [], 1)
    assert lead.epoch == epoch + (1 if "spark-a" in names else 0)
    assert not world.records(IncidentOpened)
    for node in world.nodes.values():
        assert node.state.member.intent.stamp == Stamp(lead.epoch, 1)


def test_what_was_taken_over_is_verified_before_it_is_called_serving() -> None:
    world = in_phase(Phase.SERVING)
    world.restart_daemon("spark-a")
    world.run_until(serving(world), 10)
    after = [record.after for record in world.records(PhaseChanged)]
    assert after[-2:] == [Phase.VERIFYING, Phase.SERVING]
    assert len(world.records(Verified)) == 2


@pytest.mark.parametrize(
    "phase", [Phase.FORMING, Phase.INIT_DISTRIBUTED, Phase.LOADING_WEIGHTS, Phase.CAPTURING_GRAPHS]
)
@pytest.mark.parametrize("name", ["spark-a", "spark-b"])
def test_a_start_goes_on_where_it_was(phase: Phase, name: str) -> None:
    world = Systemd()
    world.run_until(reached(world, phase))
    if phase is Phase.FORMING:
        world.run_until(lambda: world.starts == [("spark-a", UnitName.RAY, Stamp(1, 1))])
        world.run_for(0.15)
    world.restart_daemon(name)
    world.run_until(serving(world))
    assert world.generation == 1
    assert not world.stops
    assert not world.records(IncidentOpened)


@pytest.mark.parametrize("gone", [UnitName.RAY, UnitName.SERVE])
def test_a_part_alone_is_fenced_and_started_anew(gone: UnitName) -> None:
    world = in_phase(Phase.SERVING)
    world.head.up = False
    world.kill("spark-a", gone)
    world.restart_daemon("spark-a")
    world.run_until(serving(world))
    assert world.generation == 2
    assert {node for node, _ in world.stops} == {"spark-a", "spark-b"}


@pytest.mark.parametrize("both", [False, True])
def test_a_worker_that_comes_back_without_its_part_ends_the_generation(both: bool) -> None:
    world = in_phase(Phase.SERVING)
    if both:
        world.head.up = False
    world.nodes["spark-b"].procs.clear()
    world.restart_daemon("spark-b")
    if both:
        world.restart_daemon("spark-a")
    world.run_until(lambda: world.generation == 2)
    world.run_until(serving(world))


def test_the_head_does_not_wait_for_a_worker_whose_daemon_is_away() -> None:
    world = in_phase(Phase.SERVING)
    world.nodes["spark-b"].up = False
    world.restart_daemon("spark-a")
    world.run_until(serving(world), 10)
    world.run_for(600)
    world.restart_daemon("spark-b")
    world.run_for(60)
    assert (world.phase, world.generation, world.stops) == (Phase.SERVING, 1, [])
    assert world.nodes["spark-b"].state.member.intent.stamp.generation == 1


def test_without_the_broker_it_is_taken_over_all_the_same() -> None:
    world = in_phase(Phase.SERVING)
    world.set_broker(up=False)
    world.restart_daemon("spark-a")
    world.run_until(serving(world), 10)
    world.set_broker(up=True)
    world.run_for(60)
    assert (world.phase, world.generation, world.stops) == (Phase.SERVING, 1, [])


def test_a_head_that_has_forgotten_everything_takes_over_with_the_settings_of_the_start() -> None:
    world = in_phase(Phase.SERVING, settings=Settings(gpu_memory_utilization=0.87))
    world.restart_daemon("spark-a", remember=False)
    world.run_until(serving(world), 30)
    world.run_for(60)
    lead = world.head.state.coordinator
    assert (lead.generation, lead.settings.gpu_memory_utilization, world.stops) == (1, 0.87, [])
    assert lead.epoch > 1


def test_an_older_generation_than_the_newest_seen_is_not_taken_over() -> None:
    world = in_phase(Phase.SERVING)
    world.restart_daemon("spark-a", seen=Stamp(1, 2), kept=Kept())
    world.run_until(lambda: world.generation == 3)
    assert {node for node, _ in world.stops} == {"spark-a", "spark-b"}


def test_what_this_head_led_last_is_taken_over_whatever_old_messages_tell() -> None:
    world = in_phase(Phase.SERVING)
    world.restart_daemon("spark-a", seen=Stamp(1, 7))
    world.run_until(serving(world))
    lead = world.head.state.coordinator
    assert (lead.generation, lead.epoch, world.stops) == (1, 2, [])


def test_what_was_ordered_to_end_is_not_taken_over() -> None:
    world = in_phase(Phase.SERVING)
    world.kill("spark-b", UnitName.RAY)
    world.run_until(reached(world, Phase.FAILING))
    world.head.procs[UnitName.RAY].alive = world.head.procs[UnitName.SERVE].alive = True
    world.restart_daemon("spark-a")
    world.run_until(serving(world))
    assert world.generation == 2


def test_an_engine_that_hangs_is_found_after_it_was_taken_over() -> None:
    world = in_phase(Phase.SERVING)
    world.hung = True
    world.restart_daemon("spark-a")
    world.run_until(reached(world, Phase.FAILING))
    world.hung = False
    world.run_until(serving(world))
    assert world.generation == 2


def test_a_pause_outlasts_the_daemon_and_leaves_the_engine_alone() -> None:
    world = in_phase(Phase.SERVING)
    world.tell(world.head, ev.OperatorAsked(ev.Verb.PAUSE))
    world.hung = True
    world.restart_daemon("spark-a")
    world.run_for(3600)
    assert (world.phase, world.stops) == (Phase.PAUSED, [])
    world.hung = False
    world.tell(world.head, ev.OperatorAsked(ev.Verb.RESUME))
    world.run_for(60)
    assert (world.phase, world.generation, world.stops) == (Phase.SERVING, 1, [])


class Noted(Systemd):
    """What ended while no daemon was there is found, as the units' own notes tell it."""

    def _do_SweepLeftovers(self, node, _command: co.SweepLeftovers) -> None:  # noqa: N802
        procs = node.procs.values()
        living = tuple(ev.RunningUnit(p.unit, p.stamp, p.settings) for p in procs if p.alive)
        over = tuple(ev.EndedUnit(p.unit, p.stamp, p.settings, signal=9) for p in procs if not p.alive)
        generations = tuple({p.stamp.generation for p in procs})
        self.later(node, 0.1, ev.LeftoversSwept(generations, running=living, ended=over))


def test_what_ends_in_a_pause_while_nobody_leads_is_an_incident_when_it_is_over() -> None:
    world = Noted()
    world.run_until(serving(world))
    world.tell(world.head, ev.OperatorAsked(ev.Verb.PAUSE))
    world.run_for(1.0)
    world.head.up = False
    world.kill("spark-a", UnitName.SERVE)
    world.restart_daemon("spark-a")
    world.run_for(600)
    assert (world.phase, world.generation, world.stops) == (Phase.PAUSED, 1, [])

    world.tell(world.head, ev.OperatorAsked(ev.Verb.RESUME))
    world.run_until(serving(world))
    (opened,) = world.records(IncidentOpened)
    assert (opened.generation, opened.reason) == (1, "spark-a: serve ended (killed with signal 9)")
    assert world.generation == 2


@pytest.mark.parametrize("name", ["spark-a", "spark-b"])
def test_a_stop_that_was_asked_before_the_restart_is_carried_to_its_end(name: str) -> None:
    world = in_phase(Phase.SERVING)
    world.tell(world.head, ev.OperatorAsked(ev.Verb.STOP))
    world.restart_daemon(name)
    world.run_until(reached(world, Phase.STOPPED) if name == "spark-b" else lambda: not alive(world))
    world.run_for(60)
    assert not alive(world)
    assert world.phase in (Phase.STOPPED, Phase.IDLE)


def alive(world: World) -> list[UnitName]:
    return [proc.unit for node in world.nodes.values() for proc in node.procs.values() if proc.alive]


def test_an_edit_is_in_force_from_the_next_start_on() -> None:
    world = in_phase(Phase.SERVING)
    head = world.head
    world.nodes["spark-a"] = replace(
        head, policy=replace(head.policy, settings=Settings(gpu_memory_utilization=0.8))
    )
    world.restart_daemon("spark-a")
    world.run_until(serving(world), 10)
    assert world.head.state.coordinator.settings.gpu_memory_utilization == 0.9
    world.kill("spark-b", UnitName.RAY)
    world.run_until(lambda: world.generation == 2)
    assert world.head.state.coordinator.settings.gpu_memory_utilization == 0.8
    world.run_until(serving(world))


def test_what_somebody_started_is_taken_over_also_where_nothing_starts_by_itself() -> None:
    world = in_phase(Phase.SERVING)
    head = world.head
    world.nodes["spark-a"] = replace(head, policy=replace(head.policy, autostart=False))
    world.restart_daemon("spark-a", remember=False)
    world.run_until(serving(world), 30)
    assert (world.head.state.coordinator.generation, world.stops) == (1, [])


def test_memory_is_awaited_as_before_the_start_that_was_taken_over() -> None:
    world = in_phase(Phase.SERVING)
    before = world.head.available_bytes
    world.restart_daemon("spark-a", returned=(before,), unrested=True)
    world.run_until(serving(world), 10)
    member = world.head.state.member
    assert (member.baseline_bytes, member.ran) == (before, True)


def test_nothing_is_taken_over_where_nothing_runs() -> None:
    world = Systemd()
    world.restart_daemon("spark-a", remember=False)
    world.run_until(serving(world))
    assert world.generation == 1
    assert isinstance(world.remembered(world.head), Remembered)
