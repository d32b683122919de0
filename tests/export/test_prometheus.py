"""The alerts pass promtool; every query of the dashboard runs on a real Prometheus and finds something."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
ETC = PROJECT / "etc" / "prometheus"
PROMTOOL = shutil.which("promtool")
PROMETHEUS = shutil.which("prometheus")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
needs_prometheus = pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed")
DEADLINE_S = 60

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


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(url, **query):
    """Return the parsed answer of Prometheus, which says in its body what was wrong with a query."""
    target = f"{url}?{urllib.parse.urlencode(query)}" if query else url
    try:
        with urllib.request.urlopen(target, timeout=10) as answer:  # noqa: S310 - loopback
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return json.load(error)


def until(condition, process):
    deadline = time.monotonic() + DEADLINE_S
    tick = process.poll
    while time.monotonic() < deadline:
        assert tick() is None, "prometheus ended"
        try:
            if condition():
                return
        except (OSError, ValueError):
            pass
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    pytest.fail("the deadline passed")


@pytest.fixture(scope="module")
def prometheus(scrape_target, tmp_path_factory):
    """A real Prometheus that has scraped a whole life; yields the address of its API."""
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "prometheus.yml").write_text(CONFIG.format(address=scrape_target.address))
    port = free_port()
    command = [
        PROMETHEUS,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            until(scrape_target.lived.is_set, process)
            url = f"http://127.0.0.1:{port}/api/v1/"
            until(lambda: get(f"{url}query", query="up{job='vllm'} == 1")["data"]["result"], process)
            yield url
        finally:
            process.terminate()
            process.wait(20)


def queries():
    """Yield (panel, expression) of everything that the dashboard asks."""
    board = json.loads((PROJECT / "etc" / "grafana" / "sparkd-cluster.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for annotation in board["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]


def filled_in(expression):
    """Return the expression with the values that Grafana would put in."""
    values = {"$cluster": "spark", "$__rate_interval": "10s", "$__range": "1m", "$__interval": "1s"}
    for name, value in values.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


@needs_prometheus
@pytest.mark.process
@pytest.mark.parametrize(("panel", "expression"), list(queries()))
def test_a_query_of_the_dashboard_finds_something(prometheus, panel, expression):
    now = time.time()
    answer = get(f"{prometheus}query_range", query=filled_in(expression), start=now - 60, end=now, step="1s")

    assert answer["status"] == "success", f"{panel}: {answer.get('error')}"
    if expression in MAY_BE_EMPTY:
        return
    assert answer["data"]["result"], f"{panel}: nothing found by {expression}"


@needs_prometheus
@pytest.mark.process
def test_the_variable_of_the_dashboard_finds_the_cluster(prometheus):
    answer = get(f"{prometheus}label/cluster/values", **{"match[]": "sparkd_generation"})

    assert answer["data"] == ["spark"]


@needs_prometheus
@pytest.mark.process
def test_the_life_can_be_read_back(prometheus):
    """Prometheus holds what the records said: one recovery from ray_oom_kill, with its relaunch."""

    def value(query):
        return [result["value"][1] for result in get(f"{prometheus}query", query=query)["data"]["result"]]

    assert value("sparkd_relaunches_total{cause='ray_oom_kill'}") == ["1"]
    assert value("sparkd_incidents_total{cause='ray_oom_kill', outcome='recovered'}") == ["1"]
    assert value("sparkd_recovery_last_seconds") == ["871"]
    assert value("sparkd_memory_floor_bytes{node='spark-a'}") == ["NaN"]
    assert value("max_over_time(sparkd_phase{phase='backing_off'}[1m])") == ["1"]
