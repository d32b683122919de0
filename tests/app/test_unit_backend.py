"""Which backend runs the units."""

from __future__ import annotations

import pytest

from sparkd.app.unit_backend import chosen
from sparkd.config import UnitBackend

AUTO, SYSTEMD, CHILDREN = UnitBackend.AUTO, UnitBackend.SYSTEMD, UnitBackend.CHILDREN


@pytest.mark.parametrize(
    ("backend", "environ", "expected"),
    [
        (AUTO, {"SYSTEMD_EXEC_PID": "42"}, SYSTEMD),
        (AUTO, {"SYSTEMD_EXEC_PID": "41"}, CHILDREN),
        (AUTO, {}, CHILDREN),
        (SYSTEMD, {}, SYSTEMD),
        (CHILDREN, {"SYSTEMD_EXEC_PID": "42"}, CHILDREN),
    ],
    ids=["a unit", "below another's", "a shell", "systemd", "children"],
)
def test_auto_is_systemd_where_the_daemon_is_its_unit(backend, environ, expected) -> None:
    assert chosen(backend, environ, 42) is expected
