"""Code, docs/metrics.md, dashboard and alerts speak of the same metrics."""

from __future__ import annotations

import json
import re
from pathlib import Path

from export import states
from sparkd.core.records import InvariantBroken, MessageDropped
from sparkd.export.metrics import Metrics

PROJECT = Path(__file__).parents[2]


def exposed():
    """Return {name: (type, labels)} of all that a daemon can tell."""
    metrics = Metrics("0", "spark-a", causes=("unknown",))
    metrics.update(states.serving(), states.POLICY, states.NOW)
    metrics.records([MessageDropped("status", "replay"), InvariantBroken("x")])
    metrics.handler_failed("/")
    text = metrics.text().decode()
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    labels = {name: set() for name in kinds}
    for name, inside in re.findall(r"^(\w+)\{(.*)\} ", text, re.MULTILINE):
        base = name if name in kinds else re.sub("_(bucket|sum|count)$", "", name)
        labels[base] |= set(re.findall(r'(\w+)="', inside)) - {"le"}
    return {name: (kind, labels[name]) for name, kind in kinds.items()}


def documented():
    text = (PROJECT / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(sparkd_\w+)` \| (\w+) \| (.*?) \|", text, re.MULTILINE)
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def used(path):
    """Return the names in the expressions of a file; a histogram's parts count as the histogram."""
    names = set(re.findall(r"\bsparkd_\w+", path.read_text()))
    return {re.sub("_(bucket|sum|count)$", "", name) for name in names if name != "sparkd_setting_"}


def test_every_metric_is_documented_as_it_is():
    assert documented() == exposed()


def test_dashboard_and_alerts_use_only_what_is_there():
    known = set(exposed())

    assert used(PROJECT / "etc/grafana/sparkd-cluster.json") <= known
    assert used(PROJECT / "etc/prometheus/rules.yml") <= known
    assert used(PROJECT / "etc/prometheus/rules_test.yml") <= known


def test_what_no_panel_and_no_alert_shows_is_known():
    """A metric for queries by hand only; a new one must be shown somewhere or stand here."""
    by_hand = {"sparkd_epoch", "sparkd_engine_healthy", "sparkd_engine_tokens_total", "sparkd_build_info"}
    by_hand |= {"sparkd_waiting_reasons", "sparkd_backoff_left_seconds", "sparkd_verified_starts_total"}
    by_hand |= {"sparkd_http_handler_errors_total"}
    shown = used(PROJECT / "etc/grafana/sparkd-cluster.json") | used(PROJECT / "etc/prometheus/rules.yml")
    settings = {name for name in exposed() if name.startswith("sparkd_setting_")}

    assert set(exposed()) - shown - settings == by_hand


def test_the_unit_is_last_in_every_name():
    ends = {"seconds", "bytes", "ratio", "total", "items", "tokens", "requests", "records", "level", "second"}
    ends |= {"info", "seqs", "len", "lazy"}
    plain = (
        "phase coordinator generation epoch needs_operator waiting_reasons settings_changed ray_nodes_alive"
    )
    plain += " nodes_expected peer_reachable broker_connected guard_enforcing engine_verified engine_healthy"
    plain += " canary_ok incident_open store_writable"
    states_and_counts = {f"sparkd_{name}" for name in plain.split()}

    for name in set(exposed()) - states_and_counts:
        assert name.rpartition("_")[2] in ends or name.endswith("_tokens_per_second"), name


def test_every_alert_says_what_to_do():
    text = (PROJECT / "etc/prometheus/rules.yml").read_text()

    alerts = text.count("- alert: ")
    assert alerts >= 8
    assert text.count("summary: ") == text.count("description: ") == alerts


def test_the_dashboard_is_whole():
    board = json.loads((PROJECT / "etc/grafana/sparkd-cluster.json").read_text())

    idents = [panel["id"] for panel in board["panels"]]
    assert len(set(idents)) == len(idents)
    for panel in board["panels"]:
        grid = panel["gridPos"]
        assert panel["title"]
        assert grid["x"] + grid["w"] <= 24
        assert panel["targets"]
