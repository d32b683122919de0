from sparkd.engines.lines import read_line
from sparkd.intake.pump import FACTS_MAX, REPEAT_S, SIGNALS_MAX, Intake
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.signals.match import Places
from sparkd.words import Phase, UnitName

CATALOGUE = packaged_catalogue()
PLACES = Places(ranks={0: "a", 1: "b"}, head="a")
SERVE, RAY = UnitName.SERVE, UnitName.RAY
DIED = (
    b"(EngineCore pid=1) ERROR 11-30 01:58:34 [r.py:522] "
    b"RayWorkerProc rank=[1] died unexpectedly, shutting down executor.\n"
)
NEXT = b"INFO:     Shutting down\n"


def make() -> Intake:
    return Intake("a", CATALOGUE, read_line, PLACES)


def test_a_death_becomes_a_signal_after_the_line_or_after_silence() -> None:
    intake = make()
    assert not intake.feed("serve log", SERVE, 4, DIED, 1.0)
    assert intake.waiting
    (signal,) = intake.tick(1.3).signals
    assert (signal.id, signal.node, signal.rank, signal.generation) == ("worker_died_ray", "b", 1, 4)
    assert (signal.at_s, signal.printed, signal.fatal) == (1.0, "11-30 01:58:34", True)
    assert not intake.waiting


def test_the_same_fact_is_counted_and_told_again_after_a_while() -> None:
    intake = make()
    intake.feed("serve log", SERVE, 1, DIED, 1.0)
    assert len(intake.tick(1.3).signals) == 1
    intake.feed("serve log", SERVE, 1, DIED, 2.0)
    again = intake.tick(2.3)
    assert (again.signals, again.repeated) == ((), 1)
    intake.feed("serve log", SERVE, 1, DIED, 1.0 + REPEAT_S)
    assert len(intake.tick(2.0 + REPEAT_S).signals) == 1
    intake.feed("serve log", SERVE, 2, DIED, 3.0)
    assert len(intake.tick(3.3).signals) == 1, "another generation is another fact"


def test_phases_of_the_serve_unit_are_folded() -> None:
    lines = b"".join(
        b"\rLoading safetensors checkpoint shards:  %d%% Completed | %d/4 [00:00<00:00, 44.05it/s]"
        % (n * 25, n)
        for n in range(5)
    )
    batch = make().feed(
        "serve log",
        SERVE,
        7,
        lines + b"\n(W pid=1) INFO 11-30 01:58:34 [a.py:1] Available KV cache memory: 49.1 GiB\n",
        1.0,
    )
    first, second = batch.phases
    assert (first.generation, first.phase, first.done, first.total) == (7, Phase.LOADING_WEIGHTS, 4, 4)
    assert (second.phase, second.kv_cache_bytes) == (Phase.ALLOCATING_KV_CACHE, round(49.1 * (1 << 30)))
    assert not make().feed("raylet.out", RAY, 7, lines, 1.0).phases


def test_a_chunk_may_end_anywhere_and_the_end_of_the_source_gives_the_rest() -> None:
    intake = make()
    for byte in DIED[:-1]:
        assert not intake.feed("serve log", SERVE, 1, bytes([byte]), 1.0).signals
    assert [s.id for s in intake.end("serve log", 1, 2.0).signals] == ["worker_died_ray"]
    assert not intake.end("serve log", 1, 2.0)


def test_noise_is_not_told() -> None:
    batch = make().feed("serve log", SERVE, 1, b"nanobind: leaked 4 instances!\n", 1.0)
    assert not batch.signals


def test_what_is_too_much_is_counted() -> None:
    intake = make()
    flood = b"".join(
        b"RayWorkerProc rank=[%d] died unexpectedly, shutting down executor.\n" % n
        for n in range(SIGNALS_MAX + 9)
    )
    batch = intake.feed("serve log", SERVE, 1, flood, 1.0)
    assert (len(batch.signals), batch.dropped) == (SIGNALS_MAX, 9)
    flips = b"Available routes are:\nLoading weights took 1 seconds\nERROR x\n" * FACTS_MAX
    batch = make().feed("serve log", SERVE, 1, flips, 1.0)
    assert len(batch.phases) == FACTS_MAX
    assert batch.dropped >= FACTS_MAX // 2


def test_the_hosts_own_sources_are_bounded_by_time_not_for_ever() -> None:
    intake = make()
    flood = b"".join(
        b"RayWorkerProc rank=[%d] died unexpectedly, shutting down executor.\n" % n
        for n in range(SIGNALS_MAX)
    )
    assert len(intake.feed("kernel", None, 0, flood, 1.0).signals) == SIGNALS_MAX
    more = b"RayWorkerProc rank=[9999] died unexpectedly, shutting down executor.\n"
    assert intake.feed("kernel", None, 0, more, 2.0).dropped == 1
    assert len(intake.feed("kernel", None, 0, more, 2.0 + REPEAT_S).signals) == 1


NEARLY_FULL = (
    b"[2026-11-30 01:00:00,001 E 7 8] file_system_monitor.cc:116: /tmp/ray/s is over 95%% full, "
    b"available space: 21.5741 GB; capacity: 460.432 GB. %d\n"
)
OUT_OF_MEMORY = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.\n"


def test_a_generation_that_serves_for_long_does_not_go_blind() -> None:
    intake = make()
    for n in range(3 * SIGNALS_MAX):
        batch = intake.feed("raylet.out", RAY, 1, NEARLY_FULL % n, n * REPEAT_S)
        assert (len(batch.signals), batch.dropped) == (1, 0), n
    batch = intake.feed("serve log", SERVE, 1, OUT_OF_MEMORY, 3 * SIGNALS_MAX * REPEAT_S)
    assert [s.cause for s in batch.signals] == ["cuda_oom"]


def test_a_flood_hides_no_other_fact() -> None:
    intake = make()
    lost = b"got error: Broken pipe\n"
    flood = b"".join(b"(Worker_TP%d pid=9) %s" % (n, lost) for n in range(2 * SIGNALS_MAX))
    batch = intake.feed("serve log", SERVE, 1, flood, 1.0)
    assert (len(batch.signals), batch.dropped) == (SIGNALS_MAX, SIGNALS_MAX)
    deaths = b"".join(b"Worker proc VllmWorker-%d died unexpectedly.\n" % n for n in range(8))
    batch = intake.feed("serve log", SERVE, 1, deaths + NEARLY_FULL % 1, 2.0)
    assert (len(batch.signals), batch.dropped) == (9, 0)


def test_the_end_of_all_sources_gives_the_rest_of_each() -> None:
    intake = make()
    intake.feed("serve log", SERVE, 1, DIED[:-1], 1.0)
    intake.feed("raylet.out", RAY, 1, b"this node manager has mistakenly been marked as dead by the GCS", 1.0)
    assert {s.id for s in intake.end_all(1, 2.0).signals} == {"worker_died_ray", "ray_marked_dead_itself"}
    assert not intake.end_all(1, 3.0)


def test_a_generation_can_be_forgotten() -> None:
    intake = make()
    intake.feed("serve log", SERVE, 1, DIED, 1.0)
    intake.tick(2.0)
    intake.forget(1)
    intake.feed("serve log", SERVE, 1, DIED, 3.0)
    assert len(intake.tick(4.0).signals) == 1
