"""The catalogue's patterns for grep: real grep finds every example with them."""

import re
import subprocess

import pytest

from sparkd.signals.catalogue import Signature, packaged_catalogue
from sparkd.signals.posix import to_ere

SIGNATURES = packaged_catalogue().signatures
ENV = {"LC_ALL": "C", "PATH": "/usr/bin:/bin"}


def grep(pattern: str, text: str) -> int:
    done = subprocess.run(
        ["grep", "-cE", "-e", pattern], input=text.encode(), capture_output=True, env=ENV, check=False
    )
    assert done.returncode in {0, 1}, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("signature", SIGNATURES, ids=[signature.id for signature in SIGNATURES])
def test_grep_finds_the_examples(signature: Signature) -> None:
    pattern = to_ere(signature.pattern)
    assert "\n" not in pattern
    missed = [e for e in signature.examples if signature.pattern.search(e) and not grep(pattern, e)]
    assert not missed
    assert grep(pattern, "(APIServer pid=1) INFO 11-30 01:58:34 [x.py:1] ordinary\n\nhello world") == 0


@pytest.mark.parametrize(
    ("pattern", "matches", "not_"),
    [
        (r"a(?P<x>\d+)b", "a12b", "ab"),
        (r"a\s\S\w\W\D", "a bc-e", "abc-e1"),
        (r"x(?:GiB|MiB)?y", "xMiBy", "xKiBy"),
        (r"x.*?y", "x y", "yx"),
        (r"a\nlonger piece", "longer piece", "a"),
        (r"head(?s:.*)the longest tail", "the longest tail", "head"),
        (r"[\s\S]*needle", "needle", "nedle"),
        (r"(?i)Out Of", "oUT oF", "outof"),
        (r"a{2,3}b", "caab", "cab"),
        (r"(?:ab){2}c", "ababc", "abc"),
        (r"x.{0,200}?y", "x" + "." * 300 + "y", "x"),
        (r"[]^-]z", "^z", "az"),
        (r"[^\]\s]z", "az", "] z"),
        (r"\[a\]\(b\)\.\+\*\?\{\}\|\^\$\\", r"[a](b).+*?{}|^$\ ".strip(), "a"),
        (r"^a$", "prefix a suffix", "b"),
        (r"\bab\b", "x ab y", "xaby"),
        (r"a(?!b)c", "ac", "ab"),
        (r"é…[é…x]", "é…é", "éé"),
        (r"n=(\d+)", "n=7", "n="),
    ],
)
def test_translation(pattern: str, matches: str, not_: str) -> None:
    ere = to_ere(re.compile(pattern))
    assert grep(ere, matches) == 1, ere
    assert grep(ere, not_) == 0, ere
