"""Version texts as the programs print them."""

import pytest

from sparkd.engines.versions import ray_options, vllm_options
from sparkd.releases import PORTABLE_RAY, PORTABLE_VLLM, RAY, VLLM, release


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0.32.0+cpu", (0, 32)),
        ("2.60.0", (2, 60)),
        ("0.22", (0, 22)),
        ("", None),
        ("main", None),
        ("1", None),
    ],
)
def test_release(text, found):
    assert release(text) == found


def test_known_versions_warn_of_nothing():
    assert vllm_options("0.22.1") == (VLLM[0, 22].options, ())
    assert ray_options("2.51.2") == (RAY[2, 51], ())


def test_unknown_versions_get_the_portable_options():
    assert vllm_options("0.33.0")[0] is PORTABLE_VLLM
    assert ray_options("")[0] is PORTABLE_RAY
    assert "known: 0.22, 0.32" in vllm_options("0.33.0")[1][0]
