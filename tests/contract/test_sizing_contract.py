"""Sizing against the real vLLM: what it allocates now is what was recorded, and what sizing says."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from sizing import measured_by_vllm, test_measured

pytestmark = [pytest.mark.process, pytest.mark.real, pytest.mark.timeout(1200)]

CASES = ("llama-gqa:1", "llama-gqa:2", "qwen2-tied:2", "llama-awq:2", "gemma3:2", "qwen3-moe:2:ep")


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> dict:
    given = os.environ.get("SPARKD_ENGINE_ENV")
    if not given:
        pytest.skip("SPARKD_ENGINE_ENV names no environment with the real Ray and vLLM")
    out = tmp_path_factory.mktemp("sizes") / "out.json"
    script = Path(measured_by_vllm.__file__)
    subprocess.run([f"{given}/bin/python", str(script), str(out), *CASES], check=True)
    return json.loads(out.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES)
def test_what_vllm_allocates_is_what_sizing_says(case, measured) -> None:
    test_measured.check_weights(case, measured)
    test_measured.check_cache(case, measured)


@pytest.mark.parametrize("case", CASES)
def test_the_record_is_true(case, measured) -> None:
    assert measured["cases"][case] == test_measured.RECORDED["cases"][case]
