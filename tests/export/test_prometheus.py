"""The alerts pass promtool; every query of the dashboard runs on a real Prometheus and finds something."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from export.prometheus import ETC, PROMETHEUS, filled_in, prometheus, queries

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
needs_prometheus = pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed")

# Queries that may find nothing on a healthy cluster, with the reason.
MAY_BE_EMPTY = {}

CONFIG = """
global: {{scrape_interval: 300ms, scrape_timeout: 300ms}}
scrape_configs:
  - job_name: sparkd
    static_configs: [{{targets: ["{address}"], labels: {{cluster: spark, node_name: spark-a}}}}]
  - job_name: vllm
    metrics_path: /vllm
    static_configs: [{{targets: ["{address}"], labels: {{cluster: spark, node_name: spark-a}}}}]
"""


@needs_promtool
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "rules.yml"),
        ("test", "rules", "rules_test.yml"),
        ("test", "rules", "rules_week_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_is_content(arguments):
    done = subprocess.run([PROMTOOL, *arguments], cwd=ETC, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def scraped(scrape_target, tmp_path_factory):
    """A real Prometheus that has scraped a whole life."""
    folder = tmp_path_factory.mktemp("prometheus")
    with prometheus(folder, CONFIG.format(address=scrape_target.address)) as running:
        running.until(scrape_target.lived.is_set)
        running.until(lambda: running.found("up{job='vllm'} == 1"))
        yield running


@needs_prometheus
@pytest.mark.process
@pytest.mark.parametrize(("panel", "expression"), queries())
def test_a_query_of_the_dashboard_finds_something(scraped, panel, expression):
    answer = scraped.over(filled_in(expression), 60)

    assert answer["status"] == "success", f"{panel}: {answer.get('error')}"
    if expression in MAY_BE_EMPTY:
        return
    assert answer["data"]["result"], f"{panel}: nothing found by {expression}"


@needs_prometheus
@pytest.mark.process
def test_the_variable_of_the_dashboard_finds_the_cluster(scraped):
    answer = scraped.ask("label/cluster/values", **{"match[]": "sparkd_generation"})

    assert answer["data"] == ["spark"]


@needs_prometheus
@pytest.mark.process
def test_the_life_can_be_read_back(scraped):
    """Prometheus holds what the records said: one recovery from ray_oom_kill, with its relaunch."""

    def value(query):
        return [result["value"][1] for result in scraped.found(query)]

    assert value("sparkd_relaunches_total{cause='ray_oom_kill'}") == ["1"]
    assert value("sparkd_incidents_total{cause='ray_oom_kill', outcome='recovered'}") == ["1"]
    assert value("sparkd_recovery_last_seconds") == ["871"]
    assert value("sparkd_memory_floor_bytes{node='spark-a'}") == ["NaN"]
    assert value("max_over_time(sparkd_phase{phase='backing_off'}[1m])") == ["1"]
