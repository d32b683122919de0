"""What `sparkd exec` reads without the schema is what the daemon reads with it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from config.files import EXAMPLE, Place, changed
from sparkd.config.load import load_served
from sparkd.config.model import EngineSection, RaySection, VllmSection
from sparkd.config.served import ENGINE_KEYS, read_served
from sparkd.engines.model import EngineSpec

SPELT: dict[str, dict[str, Any]] = {
    "as little as possible": {},
    "sizes as texts": {"engine.ray.object_store_bytes": "80MiB"},
    "paths with a final slash": {"engine.model": "/srv/models/Qwen3/", "engine.home": "/var/lib/x/"},
    "numbers in the environment": {"engine.env": {"OMP_NUM_THREADS": 4, "A": "b"}},
    "a node's own environment": {"node.1.env": {"NCCL_DEBUG": "INFO"}},
    "a second address": {"node.0.management_address": "10.0.0.1"},
    "the head last": {"node.0.role": "worker", "node.1.role": "head"},
    "without Ray": {"engine.backend": "mp"},
    "arguments": {"engine.vllm.extra_args": ["--a=1", "--b"], "engine.ray.extra_args": ["--num-cpus=1"]},
    "another name": {"engine.served_name": "qwen"},
    "another run directory": {"paths.run_dir": "/run/other/"},
    "every number of Ray": {
        "engine.ray.port": 7000,
        "engine.ray.num_gpus": 2,
        "engine.ray.health_failures": 5,
    },
    "a token": {"engine.ray.auth_token_path": "/etc/ray/token"},
}


@pytest.mark.parametrize("name", SPELT)
@pytest.mark.parametrize("node", ["spark-a", "spark-b"])
def test_both_readings_are_equal(tmp_path: Path, name: str, node: str) -> None:
    place = Place(tmp_path)
    place.write(changed(SPELT[name]))

    assert load_served(place.path, node, {}) == read_served(place.path, node, {})


def test_both_read_the_example_alike() -> None:
    expected = load_served(str(EXAMPLE), "spark-a", {})

    assert expected == read_served(str(EXAMPLE), "spark-a", {})


def test_every_key_of_the_engine_is_read() -> None:
    sections = (("", EngineSection), ("ray", RaySection), ("vllm", VllmSection))
    keys = {(name, key) for name, model in sections for key in model.model_fields}

    assert keys - {("", "ray"), ("", "vllm"), ("", "autostart")} == set(ENGINE_KEYS.values())
    assert {field.name for field in fields(EngineSpec)} == set(ENGINE_KEYS)


@pytest.mark.parametrize(
    "environ", [{"SPARKD_ENGINE__RAY__PORT": "7000"}, {"CREDENTIALS_DIRECTORY": "/nowhere"}]
)
def test_where_others_have_a_part_only_the_schema_can_tell(tmp_path: Path, environ: dict[str, str]) -> None:
    place = Place(tmp_path)
    place.write(changed({}))

    assert read_served(place.path, "spark-a", environ) is None
    assert read_served(place.path, "spark-a", {}) is not None


@pytest.mark.parametrize("text", ["", "[", "cluster = 1", "node = 3", "[cluster]\nname = 'a'\n[engine]\n"])
def test_a_file_that_is_not_right_is_the_schemas_to_refuse(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sparkd.toml"
    path.write_text(text, encoding="utf-8")

    assert read_served(str(path), "spark-a", {}) is None
    assert read_served(str(tmp_path / "none.toml"), "spark-a", {}) is None


def test_the_engines_process_does_not_load_the_schemas_library(tmp_path: Path) -> None:
    """Every start of the engine waits for it: 0.4 s of imports here."""
    place = Place(tmp_path)
    place.write(changed({"paths.run_dir": str(tmp_path)}))
    code = (
        "import sys; from sparkd.cli.sparkd import main; "
        f"main(['exec', 'ray', '--config', {place.path!r}, '--node', 'spark-a']); "
        "print([name for name in ('pydantic', 'asyncio', 'structlog', 'aiohttp') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={})

    assert "there is no order to run" in done.stderr
    assert done.stdout.strip() == "[]"
