"""A real Prometheus, and what the dashboards and the alerts ask of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ports import free_port

PROJECT = Path(__file__).parents[2]
ETC = PROJECT / "etc" / "prometheus"
BOARDS = sorted((PROJECT / "etc" / "grafana").glob("*.json"))
PROMETHEUS = shutil.which("prometheus")
DEADLINE_S = 60


@dataclass
class Prometheus:
    """One that runs; `url` is the address of its API."""

    url: str
    process: subprocess.Popen[str]

    def ask(self, what: str, **query: Any) -> dict[str, Any]:
        """Return the parsed answer, which says in its body what was wrong with a query."""
        target = f"{self.url}{what}?{urllib.parse.urlencode(query)}" if query else f"{self.url}{what}"
        try:
            with urllib.request.urlopen(target, timeout=10) as answer:  # noqa: S310 - loopback
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return json.load(error)

    def found(self, query: str) -> list[dict[str, Any]]:
        """Return what a query finds now."""
        return self.ask("query", query=query)["data"]["result"]

    def over(self, query: str, span_s: float) -> dict[str, Any]:
        """Return the answer to a query over the last seconds, as a panel asks it."""
        now = time.time()
        return self.ask("query_range", query=query, start=now - span_s, end=now, step="1s")

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until *condition* holds; who does not answer yet is asked again."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, "prometheus ended"
            try:
                if condition():
                    return
            except (OSError, ValueError, KeyError):
                pass
            try:
                self.process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
        raise AssertionError("the deadline passed")


@contextmanager
def prometheus(folder: Path, config: str) -> Iterator[Prometheus]:
    """Run Prometheus with *config* and its data below *folder*."""
    (folder / "prometheus.yml").write_text(config)
    port = free_port()
    command = [
        str(PROMETHEUS),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log, text=True) as process,
    ):
        try:
            yield Prometheus(f"http://127.0.0.1:{port}/api/v1/", process)
        finally:
            process.terminate()
            process.wait(20)


def queries() -> list[tuple[str, str]]:
    """Return (panel, expression) of everything that the dashboards ask."""
    found = []
    for path in BOARDS:
        board = json.loads(path.read_text())
        found += [
            (panel["title"], target["expr"]) for panel in board["panels"] for target in panel["targets"]
        ]
        found += [(note["name"], note["expr"]) for note in board["annotations"]["list"]]
    return found


def filled_in(expression: str) -> str:
    """Return the expression with the values that Grafana would put in."""
    values = {"$cluster": "spark", "$__rate_interval": "10s", "$__range": "1m", "$__interval": "1s"}
    for name, value in values.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


def alerts() -> list[tuple[str, str]]:
    """Return (alert, expression) of every rule."""
    groups = yaml.safe_load((ETC / "rules.yml").read_text())["groups"]
    return [(rule["alert"], rule["expr"]) for group in groups for rule in group["rules"]]
