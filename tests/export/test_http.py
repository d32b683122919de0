"""The daemon's HTTP side: life, readiness, status, page, metrics; errors are told and counted."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import aiohttp
import pytest
from structlog.testing import capture_logs

from export import states
from sparkd.api import http
from sparkd.export.page import page
from sparkd.export.status import ready, status_view


def views(state=None, **changes):
    state = state or states.serving()
    made = http.Views(
        metrics=lambda: b"sparkd_generation 14\n",
        status=lambda: status_view(state, states.POLICY, states.NOW),
        page=lambda: page(status_view(state, states.POLICY, states.NOW)),
        ready=lambda: ready(state),
        step_age_s=lambda: 0.5,
        failed=lambda _: None,
    )
    return replace(made, **changes)


def ask(given, path, token=None, headers=None):
    """Return (status, content type, text) of one request to a listening application."""

    async def main():
        runner = await http.listen(http.make_app(given, token=token), port=0, token=token)
        try:
            port = runner.addresses[0][1]
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{port}{path}", headers=headers) as reply,
            ):
                return reply.status, reply.content_type, await reply.text()
        finally:
            await runner.cleanup()

    return asyncio.run(main())


def test_metrics():
    assert ask(views(), "/metrics") == (200, "text/plain", "sparkd_generation 14\n")


def test_status_is_the_document():
    status, kind, text = ask(views(), "/status")

    assert (status, kind) == (200, "application/json")
    assert '"phase": "serving"' in text


def test_the_page():
    status, kind, text = ask(views(), "/")

    assert (status, kind) == (200, "text/html")
    assert "SERVING for 6 h 12 min" in text


@pytest.mark.parametrize(("age_s", "status"), [(0.5, 200), (15.0, 200), (15.1, 503)])
def test_healthz_says_the_age_of_the_last_step(age_s, status):
    found, _, text = ask(views(step_age_s=lambda: age_s), "/healthz")

    assert found == status
    assert f'"step_age_s": {age_s}' in text


@pytest.mark.parametrize(("state", "status"), [(states.serving, 200), (states.loading, 503)])
def test_readyz_is_200_only_when_serving(state, status):
    assert ask(views(state()), "/readyz")[0] == status


def test_a_handler_that_fails_is_told_and_counted():
    failed = []

    def broken():
        raise RuntimeError("no")

    with capture_logs() as logs:
        status, _, text = ask(views(status=broken, failed=failed.append), "/status")

    assert status == 500
    assert "its log says why" in text
    assert failed == ["/status"]
    assert [entry["event"] for entry in logs] == ["handler_failed"]


def test_what_is_not_there_is_404_and_no_failure():
    failed = []

    assert ask(views(failed=failed.append), "/nothing")[0] == 404
    assert failed == []


def test_a_token_is_wanted_but_for_life():
    login = {"Authorization": "Bearer secret"}

    assert ask(views(), "/status", token="secret")[0] == 401
    assert ask(views(), "/status", token="secret", headers={"Authorization": "Bearer wrong"})[0] == 401
    assert ask(views(), "/status", token="secret", headers=login)[0] == 200
    assert ask(views(), "/healthz", token="secret")[0] == 200


def test_nobody_listens_to_the_world_without_a_token():
    async def main():
        with pytest.raises(http.ExposedWithoutTokenError, match="without a token"):
            await http.listen(http.make_app(views()), "0.0.0.0", 0)

    asyncio.run(main())
