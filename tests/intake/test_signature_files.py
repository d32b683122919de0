"""Signature files of a site: what cannot be used is told with its name and left out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparkd.intake.signature_files import with_site_signatures
from sparkd.signals.catalogue import compile_catalogue

GOOD = """[[signature]]
id = "ours"
cause = "peer_lost"
proof = "proves"
literals = ["PORT"]
pattern = "PORT"
examples = ["PORT"]
"""


def problems_of(folder: Path) -> tuple[list[str], tuple[str, ...]]:
    catalogue, problems = with_site_signatures(compile_catalogue([]), folder)
    return [signature.id for signature in catalogue.signatures], problems


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("[[signature]]", "[signature]"), "one table [signature]: signatures are written"),
        ("signature = [1]", "signature is a list of other things"),
        ('signature = "x"', "signature is the value 'x'"),
        ("signature = []", "has no signature"),
        ("", "has no signature"),
        (GOOD.replace("[[signature]]", "[[signatures]]"), "has no signature"),
        (GOOD.replace('["PORT"]', '"PORT"', 1), "ours: literals: must be a list of texts"),
        (GOOD.replace('examples = ["PORT"]', 'examples = "PORT"'), "ours: examples: must be a list"),
        (GOOD + "sources = 'x'", "ours: sources: must be a list"),
        (GOOD.replace('pattern = "PORT"', 'pattern = ""'), "ours: pattern: must be a text that is not empty"),
        (GOOD.replace('pattern = "PORT"', "pattern = 5"), "ours: pattern: must be"),
        (GOOD.replace('pattern = "PORT"', 'pattern = "PORT{99999999999}"'), "too large"),
        (GOOD.replace('"peer_lost"', "['x']"), "ours: cause: must be"),
        (GOOD + "phases = [['load', 5]]", "ours: phases: must be a list of pairs"),
        (
            GOOD.replace("peer_lost", "peer_list"),
            "ours: cause 'peer_list' is not known (did you mean peer_lost?)",
        ),
        (
            GOOD.replace('"proves"', '"prove"'),
            "ours: proof: 'prove' is not known (did you mean proves?); one of",
        ),
        (GOOD + "place = 'moon'", "ours: place: 'moon' is not known; one of reader, rank, head, elsewhere"),
        (GOOD + "phase = 'load'", "ours: phase: 'load' is not known"),
        (GOOD + "phases = [['serve', 'x']]", "ours: phase: 'serve' is not known (did you mean serving?)"),
        (
            GOOD + "patern = 'x'",
            "ours: patern: no such key (did you mean pattern?); there are id, cause, proof",
        ),
        (GOOD.replace('cause = "peer_lost"\n', ""), "ours: cause is missing: a signature needs id, cause"),
        (GOOD.replace('id = "ours"\n', ""), "a signature without id: id is missing"),
        (GOOD + "fatal = 1", "ours: fatal: true or false"),
        ("x = " + "[" * 90_000, "2-bad.toml: "),
        ("# " + "x" * (1 << 20), "larger than 1 MiB"),
    ],
)
def test_a_file_of_a_wrong_shape_is_left_out(tmp_path, text, said) -> None:
    (tmp_path / "1-good.toml").write_text(GOOD.replace("ours", "fine"))
    (tmp_path / "2-bad.toml").write_text(text)
    names, problems = problems_of(tmp_path)
    assert names == ["fine"]
    assert len(problems) == 1
    assert said in problems[0]
    assert problems[0].startswith(f"{tmp_path / '2-bad.toml'}: ")


def test_what_is_no_plain_file_is_not_opened(tmp_path) -> None:
    os.mkfifo(tmp_path / "1.toml")
    (tmp_path / "2.toml").symlink_to("/dev/zero")
    (tmp_path / "3.toml").mkdir()
    names, problems = problems_of(tmp_path)
    assert names == []
    assert [problem.split(": ")[1] for problem in problems] == ["is no plain file"] * 3


def test_two_files_that_give_one_id_are_not_both_meant(tmp_path: Path) -> None:
    (tmp_path / "10.toml").write_text(GOOD)
    (tmp_path / "20.toml").write_text(GOOD.replace('"peer_lost"', '"disk_full"'))
    (tmp_path / "30.toml").write_text(GOOD.replace('"ours"', '"others"'))
    found, problems = problems_of(tmp_path)
    assert sorted(found) == ["others", "ours"]
    (problem,) = problems
    assert problem.endswith("20.toml: ours: 10.toml has a signature of this id: give one of both another id")


def test_a_file_that_was_left_out_takes_no_id(tmp_path: Path) -> None:
    (tmp_path / "10.toml").write_text(GOOD.replace('pattern = "PORT"', 'pattern = "PORT (a*)*b"'))
    (tmp_path / "20.toml").write_text(GOOD)
    found, problems = problems_of(tmp_path)
    assert found == ["ours"]
    (problem,) = problems
    assert "10.toml: ours: pattern: a repeat within a repeat without a bound" in problem
    assert "{0,80}" in problem
