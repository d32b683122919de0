"""Where the dashboards' queries get their numbers from."""

from __future__ import annotations

import pytest

from export.target import LivingTarget


@pytest.fixture(scope="module")
def scrape_target():
    """A target whose `address` serves /metrics and /vllm; `lived` is set when its life was scraped."""
    target = LivingTarget()
    target.start()
    yield target
    target.stop()
