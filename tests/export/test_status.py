"""The status document: what people need, as JSON, with unknown as null."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from export import states
from sim.world import ENFORCING, OBSERVING, UNSEEN
from sparkd.cli.status_text import status_text
from sparkd.core.messages import MemberStatus
from sparkd.export import human
from sparkd.export.one_line import one_line
from sparkd.export.page import page
from sparkd.export.sentences import now_lines, progress_text
from sparkd.export.stages import stages_of
from sparkd.export.status import About, ready, status_view
from sparkd.words import GIB, Phase

ALL = [states.loading, states.serving, states.backing_off, states.escalated, states.waiting, states.worker]


def view(state, **about):
    policy = states.POLICY if state.node == "spark-a" else replace(states.POLICY, node="spark-b")
    return status_view(state, policy, states.NOW, About(**about))


@pytest.mark.parametrize("state", ALL)
def test_every_document_is_json_and_has_the_same_keys(state):
    document = view(state())

    assert json.loads(json.dumps(document, allow_nan=False)) == json.loads(json.dumps(document))
    assert list(document) == list(view(states.serving()))
    assert document["version"] == 1


def test_a_serving_cluster():
    document = view(states.serving(), cluster="qwen-pair", model="Qwen")

    assert document["phase"] == "serving"
    assert document["serving"] is True
    assert document["phase_for_s"] == 22_320
    assert document["generation"] == 14
    assert document["traffic"]["rate_tok_s"] == 27.1
    assert document["settings"]["changed"] == ["ray_memory_threshold", "kv_cache_bytes"]
    assert document["needs"] == ""
    assert document["progress"] is None
    head, worker = document["nodes"]
    assert head["units"] == {"ray": "running", "serve": "running"}
    assert worker["units"] == {"ray": "running"}
    assert worker["available_bytes"] == int(7.6 * GIB)
    assert worker["mqtt"] is True
    assert worker["http"] is None


def test_a_loading_cluster_says_rate_time_left_and_when_it_is_stuck():
    progress = view(states.loading(8, 39))["progress"]

    assert progress["each_s"] == 18
    assert progress["left_s"] == 18 * 31 - 6
    assert progress["age_s"] == 6
    assert progress["stuck_in_s"] == 174


def test_a_phase_without_counts_has_only_its_limit():
    progress = view(states.head(Phase.COMPILING, since_s=states.NOW - 100))["progress"]

    assert progress["done"] is None
    assert progress["left_s"] is None
    assert progress["stuck_in_s"] == 2300


def test_progress_of_an_earlier_phase_is_not_that_of_this_one():
    state = states.loading(8, 39)
    compiling = replace(state.coordinator, phase=Phase.COMPILING, phase_since_s=states.NOW)
    moved = replace(state, coordinator=compiling)

    assert view(moved)["progress"]["done"] is None


def test_backing_off_says_until_when_and_what_will_differ():
    document = view(states.backing_off())

    assert document["backoff_s"] == 8
    assert document["incident"]["cause"] == "ray_oom_kill"
    assert document["incident"]["remedy"] == "KV cache 49.1 → 44.6 GiB"
    assert document["settings"]["changed"] == ["ray_memory_threshold", "kv_cache_bytes"]


def test_a_worker_knows_what_it_knows():
    document = view(states.worker())

    assert document["role"] == "worker"
    assert [document[key] for key in ("phase", "serving", "needs", "waiting", "incident")] == [None] * 5
    assert document["settings"]["in_force"] is None
    assert document["settings"]["changed"] == []


def test_a_silent_peer_is_unknown_and_its_age_is_told():
    silent = replace(states.PEER, heard_at_s=0.0, mqtt_at_s=0.0)
    node = view(replace(states.serving(), peers=(silent,)))["nodes"][1]

    assert node["heard_s"] == 1000
    assert [node[key] for key in ("phase", "units", "available_bytes")] == [None] * 3
    assert node["mqtt"] is False


def test_a_peer_that_was_never_heard_has_no_age():
    assert view(states.waiting())["nodes"][1]["heard_s"] is None


def test_telemetry_is_not_needed_for_a_peers_memory():
    status = MemberStatus("spark-b", "bbbb", available_bytes=5 * GIB, total_bytes=120 * GIB)
    peer = replace(states.PEER, telemetry=None, status=status)

    assert view(replace(states.serving(), peers=(peer,)))["nodes"][1]["available_bytes"] == 5 * GIB


def test_ready_only_when_serving():
    assert ready(states.serving()) == (True, "serving")
    assert ready(states.loading()) == (False, "not serving: loading_weights")
    assert ready(states.worker()) == (False, "not serving: the phase is unknown")


@pytest.mark.parametrize("state", ALL)
def test_the_page_needs_no_script_and_says_who_is_needed(state):
    text = page(json.loads(json.dumps(view(state(), cluster="c"))))

    assert "<script" not in text
    assert "Needs you:" in text
    assert 'http-equiv="refresh"' in text


def test_the_page_does_not_believe_what_it_shows():
    evil = states.head(Phase.ESCALATED, needs="<script>alert(1)</script>")

    assert "<script>" not in page(view(evil, cluster="<b>", trouble="<i>", model="<u>"))


def test_sentences():
    assert now_lines(view(states.serving())) == ["27.1 tok/s · 3 running · 0 waiting"]
    assert now_lines(view(states.waiting())) == ["waiting: spark-b: its sparkd is not heard"]
    assert progress_text("loading_weights", view(states.loading())["progress"]) == (
        "loading weights 21 % · 8 of 39 · 18 s each · about 9 min left · stuck if nothing moves in 3 min"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "unknown"),
        (0, "0 s"),
        (0.412, "412 ms"),
        (0.9996, "1000 ms"),
        (1.94, "1.9 s"),
        (9.99, "10 s"),
        (59.6, "1 min"),
        (871, "14 min 31 s"),
        (3600, "1 h"),
        (22_320, "6 h 12 min"),
        (3601, "1 h"),
        (200_000, "2 d 7 h"),
        (-1, "0 s"),
    ],
)
def test_durations(seconds, text):
    assert human.duration_text(seconds) == text


def test_stages_leave_out_what_was_not_reached_and_what_was_before():
    times = {
        "detected_s": 10.0,
        "fence_ordered_s": 10.0,
        "decided_s": 12.0,
        "launched_s": 5.0,
        "serving_s": None,
    }

    assert stages_of(times) == (("fence_ordered", 0.0), ("decided", 2.0))
    assert stages_of({}) == ()


def test_the_guards_are_told_by_node_and_what_is_wrong_with_one_in_a_line():
    state = states.serving()
    peer = replace(states.PEER, status=replace(states.PEER.status, guard=replace(OBSERVING, trips=2)))
    guarded = replace(state, member=replace(state.member, guard=ENFORCING), peers=(peer,))
    document = view(guarded)
    own, other = document["nodes"]

    assert (own["guard"], own["guard_why"], own["floor_bytes"]) == ("enforcing", "", 3 * GIB)
    assert (other["guard"], other["guard_why"], other["guard_trips"]) == (
        "only observing",
        "it only observes",
        2,
    )
    assert document["guard_enforcing"] is False
    lines = [line for line in status_text(document, 1.7e9).splitlines() if line.startswith("guard ")]
    assert lines == [
        "guard     spark-b: memory guard only observing: it only observes",
        "guard     spark-b: the memory guard acted 2 times since it began (docs/guard.md)",
    ]
    assert "memory guard" not in one_line(guarded, states.POLICY, states.NOW)
    lost = replace(state, member=replace(state.member, guard=UNSEEN))
    assert "memory guard not there" in one_line(lost, states.POLICY, states.NOW)


def test_a_guard_of_which_nobody_has_said_anything_is_unknown():
    document = view(states.serving())
    assert document["guard_enforcing"] is None
    assert [node["guard"] for node in document["nodes"]] == [None, None]


def test_a_monitor_that_is_off_beside_guards_as_asked_is_no_change():
    state = states.serving()
    peer = replace(states.PEER, status=replace(states.PEER.status, guard=ENFORCING))
    settings = replace(states.POLICY.settings, ray_memory_threshold=None)
    policy = replace(
        states.POLICY, settings=replace(settings, ray_memory_threshold=0.98), ray_monitor_off_asked=True
    )
    guarded = replace(
        state,
        member=replace(state.member, guard=ENFORCING),
        peers=(peer,),
        coordinator=replace(state.coordinator, settings=settings),
    )
    assert status_view(guarded, policy, states.NOW)["settings"]["changed"] == []
    unguarded = replace(guarded, member=replace(state.member, guard=OBSERVING))
    assert status_view(unguarded, policy, states.NOW)["settings"]["changed"] == ["ray_memory_threshold"]
