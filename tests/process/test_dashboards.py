"""What the dashboards and the alerts ask, asked of a real Prometheus that has watched real daemons.

Two daemons on the stand-in engine live through a first start, a memory kill and its recovery; they and the
engine's API server are scraped as `etc/prometheus/prometheus.yml` says, at other addresses and more often.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import pytest
import yaml

from demo import KILL
from export.prometheus import ETC, PROMETHEUS, Prometheus, alerts, filled_in, prometheus, queries
from standin_cluster import HEAD, Standin

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(120),
    pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed"),
]
SPAN_S = 180
# The engine logs its rate every ten seconds, and this life is shorter; a load must outlast some scrapes.
PACE = {"VLLM_LOG_STATS_INTERVAL": "1", "SPARKD_STANDIN_PHASE_DELAYS": '{"loading_weights": 3}'}

# Metrics of which only "unknown" is known in this life, each with the reason.
UNKNOWN = {"sparkd_memory_floor_bytes": "no memory guard is observed"}
if not Path("/proc/pressure/memory").exists():
    UNKNOWN["sparkd_memory_pressure_ratio"] = "this kernel does not measure pressure"


def config_for(standin: Standin) -> str:
    """Return the example's text with this cluster's addresses and a short interval."""
    config = yaml.safe_load((ETC / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "500ms", "scrape_timeout": "400ms", "evaluation_interval": "1s"}
    config["rule_files"] = [str(ETC / name) for name in config["rule_files"]]
    places = {f"{node}:9760": f"127.0.0.1:{standin.page_port(node)}" for node in standin.cluster.daemons}
    places["spark-a:8000"] = f"{HEAD}:{standin.ports['api']}"
    for job in config["scrape_configs"]:
        for group in job["static_configs"]:
            group["targets"] = [places.pop(target) for target in group["targets"]]
    assert not places
    return str(yaml.safe_dump(config))


async def generate(standin: Standin) -> None:
    """Ask the engine for tokens, as its users do."""
    url = f"http://{HEAD}:{standin.ports['api']}/v1/completions"
    body = {"model": "qwen-demo", "prompt": "hello", "max_tokens": 16}
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
        assert answer.status == 200, await answer.text()


async def live_through(standin: Standin, watching: Prometheus) -> None:
    """First start, memory kill, recovery, some tokens; each seen by Prometheus before the next."""

    async def seen(query: str) -> None:
        await asyncio.to_thread(watching.until, lambda: watching.found(query))

    await seen('count(up{job="sparkd"} == 0) == 2')
    await standin.cluster.start()
    judged, closed = await standin.recovered(0)
    assert (judged["cause"], closed["outcome"]) == ("ray_oom_kill", "recovered")
    await seen(f"max_over_time(sparkd_progress_done_items[{SPAN_S}s]) > 0")
    await seen('sparkd_incidents_total{cause="ray_oom_kill", outcome="recovered"} == 1')
    await seen('up{job="vllm"} == 1')
    # Somebody who is not of the cluster says something: that is counted, and shown.
    await standin.leave_garbage()
    await seen("sparkd_messages_dropped_total > 0")
    await seen("vllm:generation_tokens_total")
    await generate(standin)
    await seen("rate(vllm:generation_tokens_total[4s]) > 0")
    await seen("sparkd_engine_throughput_tokens_per_second >= 0")
    await seen("count(count_over_time(sparkd_messages_dropped_total[10s]) >= 2)")


@pytest.fixture(scope="module")
def watched(lived: Callable[..., Standin], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has seen it all; the daemons have ended."""
    folder = tmp_path_factory.mktemp("prometheus")
    with ExitStack() as stack:
        running: list[Prometheus] = []

        async def story(standin: Standin) -> None:
            running.append(stack.enter_context(prometheus(folder, config_for(standin))))
            await live_through(standin, running[0])

        lived(story, start=False, faults=(KILL,), env=PACE)
        yield running[0]


@pytest.mark.parametrize(("panel", "expression"), queries())
def test_a_query_of_a_dashboard_finds_something(watched: Prometheus, panel: str, expression: str) -> None:
    """It is valid, and finds values: not only series of which nothing is known."""
    answer = watched.over(filled_in(expression), SPAN_S)
    assert answer["status"] == "success", f"{panel}: {answer.get('error')}"
    values = [float(value) for series in answer["data"]["result"] for _, value in series["values"]]
    assert values, f"{panel}: nothing found by {expression}"
    unknown = any(name in expression for name in UNKNOWN)
    assert all(math.isnan(value) for value in values) is unknown, f"{panel}: {expression}"


def test_the_cluster_can_be_chosen(watched: Prometheus) -> None:
    answer = watched.ask("label/cluster/values", **{"match[]": "sparkd_generation"})
    assert answer["data"] == ["spark"]


@pytest.mark.parametrize(("alert", "expression"), alerts())
def test_an_alert_evaluates(watched: Prometheus, alert: str, expression: str) -> None:
    """At every moment of that life."""
    answer = watched.over(expression, SPAN_S)
    assert answer["status"] == "success", f"{alert}: {answer.get('error')}"


def test_prometheus_itself_is_content_with_every_rule(watched: Prometheus) -> None:
    groups = watched.ask("rules")["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert sorted(rule["name"] for rule in rules) == sorted(name for name, _ in alerts())
    assert {rule["health"] for rule in rules} == {"ok"}, [rule.get("lastError") for rule in rules]


def test_the_dashboards_told_the_story(watched: Prometheus) -> None:
    """One recovery from the kill, with one relaunch, on other settings than those asked for."""

    def most(query: str) -> float:
        found = watched.found(f"max(max_over_time({query}[{SPAN_S}s]))")
        return float(found[0]["value"][1])

    assert most('sparkd_incidents_total{cause="ray_oom_kill", outcome="recovered"}') == 1
    assert most('sparkd_relaunches_total{cause="ray_oom_kill"}') == 1
    assert most("sparkd_incident_open") == 1
    assert most("sparkd_generation") == 2
    assert most("sparkd_settings_changed") >= 2
    assert most("sparkd_loop_lag_seconds") < 5
    assert not watched.found(f"max_over_time(sparkd_invariants_broken_total[{SPAN_S}s]) > 0")
