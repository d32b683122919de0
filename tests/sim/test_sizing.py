"""Sizing in whole stories: asked before each launch, and by the remedies after a failure."""

from __future__ import annotations

from dataclasses import replace

from sim.world import TOTAL_BYTES, World, serving
from sizing.large import sized_large
from sparkd.core.policy import UnfitPlan
from sparkd.core.records import Judged, MemoryNotBack, PhaseChanged, PlanDoubted, Remedied, SettingsAdopted
from sparkd.words import GIB, Phase, Settings, UnitName

ASKED = Settings()


def world_of(weights: float = 54.0, **policy) -> World:
    world = World(**policy)
    world.model = sized_large(weights)
    return world


def test_a_plan_that_cannot_fit_starts_with_settings_that_do_and_costs_no_load() -> None:
    world = world_of()
    world.run_until(serving(world))

    (doubted,) = world.records(PlanDoubted)
    assert doubted.action == "adjusted"
    assert world.generation == 1
    started = world.head.procs[UnitName.SERVE].settings
    assert started == world.records(SettingsAdopted)[0].settings != ASKED
    assert "before the launch" in world.records(SettingsAdopted)[0].reason


def test_what_served_is_started_again_and_no_second_time_adjusted() -> None:
    world = world_of()
    world.run_until(serving(world))
    chosen = world.head.procs[UnitName.SERVE].settings
    world.signal("spark-a", "ray_node_died")
    world.run_until(lambda: world.phase is not Phase.SERVING)
    world.run_until(serving(world))

    assert world.generation == 2
    assert world.head.procs[UnitName.SERVE].settings == chosen
    assert len(world.records(PlanDoubted)) == 1


def test_a_refused_plan_starts_nothing_anywhere() -> None:
    world = world_of(unfit_plan=UnfitPlan.REFUSE)
    world.run_until(lambda: world.phase is Phase.ESCALATED)

    assert world.generation == 0
    assert all(not node.procs for node in world.nodes.values())
    assert [notice.state for notice in world.notices] == ["open", "escalated"]
    assert "gpu_memory_utilization" in world.notices[-1].needs


def test_the_remedy_knows_weights_and_request_that_no_log_has_said() -> None:
    """A kill while loading: the engine has said nothing of its sizes yet."""
    world = world_of(unfit_plan=UnfitPlan.WARN)

    def kill(_node, proc, phase) -> None:
        if phase is Phase.LOADING_WEIGHTS and world.generation == 1 and proc.unit is UnitName.SERVE:
            world.signal("spark-a", "ray_oom_kill", used_bytes=114 * GIB, total_bytes=119.7 * GIB)

    world.on_serve = kill
    world.run_until(serving(world))

    facts = world.records(Judged)[0].case.facts
    assert facts.weights_bytes == world.model.weights_bytes
    assert facts.request_tokens == 262144
    assert facts.request_kv_bytes == world.model.longest(ASKED)[1] > GIB
    assert facts.sizes.checkpoint_bytes == world.model.checkpoint_bytes
    assert world.records(Remedied)[0].settings_after != ASKED


def test_nothing_is_climbed_back_to_that_the_numbers_reject() -> None:
    world = world_of(climb_after_s=700.0, climb_idle_s=60.0, cooldown_s=100.0)
    world.run_until(serving(world))
    before = len(world.records(PhaseChanged))

    world.run_for(3000.0)

    assert world.phase is Phase.SERVING
    assert len(world.records(PhaseChanged)) == before


def test_nothing_known_of_the_model_launches_as_asked() -> None:
    world = World()
    world.run_until(serving(world))
    assert world.head.procs[UnitName.SERVE].settings == ASKED
    assert world.records(PlanDoubted) == []


# -- learning ------------------------------------------------------------------------------------

USED = {
    Phase.INIT_DISTRIBUTED: 8.0, Phase.LOADING_WEIGHTS: 63.0, Phase.PROFILING: 66.0,
    Phase.CAPTURING_GRAPHS: 107.9, Phase.STARTING_API: 108.9,
}  # fmt: skip
"""GiB in use when a phase begins: what this model really takes, 4 GiB less than is typical."""


def measured(world: World) -> None:
    """Let the node's memory follow what runs."""

    def follow(node, _proc, phase) -> None:
        if node.name == "spark-a":
            node.available_bytes = TOTAL_BYTES - int(USED[phase] * GIB)
            world._memory(node)

    world.on_serve = follow


def test_a_measured_start_corrects_the_next_estimate_through_a_restart_of_the_daemon() -> None:
    """By typical amounts the asked settings do not fit; by this model's own peaks they do."""
    world = world_of(cooldown_s=100.0)
    measured(world)
    world.run_until(serving(world))
    world.run_for(200.0)
    (doubted,) = world.records(PlanDoubted)
    assert doubted.action == "adjusted"
    learned = world.head.state.coordinator.learned
    assert learned is not None
    assert learned.of(Phase.CAPTURING_GRAPHS) < -3 * GIB
    assert [phase for phase, _ in learned.by_phase][::4] == [Phase.INIT_DISTRIBUTED, Phase.CAPTURING_GRAPHS]

    world.head.available_bytes = TOTAL_BYTES - int(5 * GIB)
    world.restart_daemon("spark-a", settings=None, asked=None)
    assert world.head.state.coordinator.learned == learned
    world.run_until(serving(world))

    assert world.head.procs[UnitName.SERVE].settings == ASKED
    assert len(world.records(PlanDoubted)) == 1, "nothing speaks against them any more"


def test_what_was_learned_of_another_model_or_engine_says_nothing() -> None:
    world = world_of(context="engine/driver")
    measured(world)
    world.run_until(serving(world))
    assert world.head.state.coordinator.learned is not None

    world.head.policy = replace(world.head.policy, context="another/driver")
    world.restart_daemon("spark-a")
    assert world.head.state.coordinator.learned is None


def test_nothing_is_learned_of_a_start_whose_cache_nobody_said() -> None:
    world = world_of()
    world.says_cache = False
    measured(world)
    world.run_until(serving(world))
    assert world.head.state.coordinator.learned is None


# -- between two generations ---------------------------------------------------------------------


def test_the_page_cache_of_the_weights_goes_on_every_node_before_each_launch() -> None:
    world = World()
    world.run_until(serving(world))
    world.signal("spark-a", "ray_node_died")
    world.run_until(lambda: world.phase is not Phase.SERVING)
    world.run_until(serving(world))
    assert {node for node, _ in world.evictions} == set(world.nodes)
    assert ("spark-b", 1) in world.evictions


def test_a_gpu_with_a_memory_of_its_own_keeps_the_page_cache() -> None:
    world = World(unified_memory=False)
    world.run_until(serving(world))
    assert world.evictions == []


def test_memory_that_stays_away_is_said_and_the_next_launch_is_judged_by_what_is_there() -> None:
    world = world_of(weights=40.0, settings=Settings(gpu_memory_utilization=0.80))
    world.run_until(serving(world))
    assert world.records(PlanDoubted) == []
    world.head.available_bytes -= 30 * GIB
    world.signal("spark-a", "ray_node_died")
    world.run_until(lambda: world.phase is not Phase.SERVING)
    world.run_until(lambda: world.generation == 2)

    (kept,) = world.records(MemoryNotBack)
    assert (kept.generation, kept.lacking_bytes) == (1, 30 * GIB)
    assert kept.waited_s >= world.head.policy.memory_release_s
    (doubted,) = world.records(PlanDoubted)
    assert (doubted.node, doubted.cause) == ("spark-a", "startup_free_memory_too_low")
    assert doubted.action == "launched", "these settings have served: what holds the memory may end"
