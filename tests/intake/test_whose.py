"""Whose an address is: of a log that somebody named, or of the machine that a journal names."""

from __future__ import annotations

import json

import pytest

from sparkd.intake.heads import lines_of
from sparkd.intake.whole import Origin
from sparkd.intake.whose import places_of

OWN = [("spark-a", "Local node IP: 10.77.0.1"), ("spark-b", "[state-dump] Node name: 10.77.0.2")]


def syslog(host: str, text: str) -> str:
    return f"Nov 30 01:02:03 {host} ray[7]: {text}"


def journal(host: str, text: str) -> str:
    stamp = {"__REALTIME_TIMESTAMP": "1764467900000000", "SYSLOG_IDENTIFIER": "ray"}
    return json.dumps({**stamp, "_HOSTNAME": host, "MESSAGE": text})


def addresses(lines: list[str], node: str | None = None) -> dict[str, str]:
    head = "\n".join(lines_of("\n".join(lines).encode())).encode()
    return dict(places_of([(Origin("log", node), head)]).addresses)


@pytest.mark.parametrize("form", [syslog, journal])
def test_machines_of_one_journal_name_their_addresses(form) -> None:
    lines = [form(host, text) for host, text in OWN]
    assert addresses(lines) == {"10.77.0.1": "spark-a", "10.77.0.2": "spark-b"}


def test_a_machine_with_two_addresses_of_its_own_names_none() -> None:
    assert addresses([syslog("spark-a", text) for _, text in OWN]) == {}


def test_who_was_named_wins_and_nothing_is_guessed() -> None:
    assert addresses([OWN[0][1]], "head") == {"10.77.0.1": "head"}
    assert addresses([syslog(*OWN[0])], "head") == {"10.77.0.1": "head"}
    assert addresses([OWN[0][1]]) == {}
