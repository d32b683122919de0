"""`sparkctl plan`, as an operator types it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sizing import checkpoints
from sparkd.cli import client, plan, sparkctl
from sparkd.sizing.verdict import Outcome
from standin_cluster import make_model

SPARK = ("--node-memory", "119.7GiB", "--node-available", "117GiB")
WATCHED = ("--set", "ray_memory_threshold=0.95")


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(plan, "CONFIG", str(tmp_path / "none.toml"))

    def ask(*arguments: object):
        status = sparkctl.main(["plan", *map(str, arguments)])
        told = capsys.readouterr()
        return status, told.out, told.err

    return ask


@pytest.fixture
def model(tmp_path) -> Path:
    return checkpoints.write(tmp_path / "model", *checkpoints.llama())


def config(tmp_path: Path, model: Path, more: str = "") -> Path:
    path = tmp_path / "sparkd.toml"
    nodes = "".join(
        f'[[node]]\nname = "n{n}"\nrole = "{role}"\naddress = "10.0.0.{n}"\ninterface = "cx0"\n'
        for n, role in ((1, "head"), (2, "worker"))
    )
    path.write_text(f'[cluster]\nname = "c"\n{nodes}[engine]\nmodel = "{model}"\n{more}')
    return path


def test_a_plan_that_fits(run, model) -> None:
    status, out, err = run(model, *SPARK, "--set", "gpu_memory_utilization=0.8")
    assert (status, err) == (0, "")
    assert "LlamaForCausalLM · not quantised" in out and "it fits" in out
    assert "43 MiB a rank" in out and "1.0 KiB a token" in out
    for phase in (
        "forming",
        "loading weights",
        "profiling",
        "allocating kv cache",
        "capturing graphs",
        "serving",
    ):
        assert phase in out


def test_a_plan_that_does_not_fit_says_by_how_much_and_what_would(run, model) -> None:
    status, out, _ = run(model, *SPARK, *WATCHED)
    assert status == 1
    assert "it does not fit" in out and "more than may be used (Ray's memory monitor at 95%)" in out
    assert "gpu_memory_utilization  0.9 →" in out and "pays one for one" in out


def test_what_it_advises_fits(run, model) -> None:
    _, out, _ = run(model, *SPARK, "--json")
    advised = json.loads(out)
    assert advised["fits_after_changes"]
    more = [option for c in advised["changes"] for option in ("--set", f"{c['setting']}={c['after']}")]
    assert run(model, *SPARK, *more)[0] == 0


def test_json_has_every_number(run, model) -> None:
    status, out, _ = run(model, *SPARK, *WATCHED, "--json")
    found = json.loads(out)
    assert (status, found["version"], found["outcome"]) == (1, 1, "too_large")
    assert found["weights_bytes"] == 44901376 and found["kv_token_bytes"] == 1024
    assert [need["phase"] for need in found["phases"]][-1] == "serving"
    for need in found["phases"]:
        assert need["bytes"] == sum(part["bytes"] for part in need["parts"])
        assert {part["source"] for part in need["parts"]} <= {"counted", "declared", "measured"}
    failure = found["failures"][0]
    assert (failure["phase"], failure["cause"]) == ("capturing_graphs", "ray_oom_kill")
    assert failure["over_bytes"] > 0


def test_an_unknown_architecture_is_said_to_be_unknown(run, tmp_path) -> None:
    made, tensors = checkpoints.llama()
    folder = checkpoints.write(tmp_path / "model", {**made, "architectures": ["GrokForCausalLM"]}, tensors)
    status, out, _ = run(folder, *SPARK, "--set", "gpu_memory_utilization=0.8")
    assert status == 2
    assert "nothing can be said" in out and "it fits" not in out and "GrokForCausalLM" in out
    found = json.loads(run(folder, *SPARK, "--json")[1])
    assert found["weights_bytes"] is None and found["kv_token_bytes"] is None
    low, high = found["weights_bounds_bytes"]
    assert 0 < low < high


def test_the_configuration_asks(run, model, tmp_path) -> None:
    text = (
        '[engine.vllm]\nversion = "0.32.0"\nextra_args = ["--kv-cache-dtype", "fp8", "--cpu-offload-gb=4"]\n'
        "[settings]\ngpu_memory_utilization = 0.7\n"
    )
    status, out, _ = run("--config", config(tmp_path, model, text), *SPARK)
    assert status == 0
    assert str(model) in out and "utilisation 0.7" in out and "0.5 KiB a token" in out
    assert "vllm 0.32.0" in out and "was not read" not in out
    assert "not worked out, and they change the memory: --cpu-offload-gb" in out


@pytest.mark.parametrize("engine", ['device = "cpu"\n', '[engine.vllm]\nversion = "0.32.0+cpu"\n'])
def test_the_cpu_build_is_known_by_its_device_or_its_version(engine, run, model, tmp_path) -> None:
    """Its memory is the node's, also where the GPUs of this cluster would have their own."""
    path = config(tmp_path, model, f"{engine}[recovery]\nunified_memory = false\n")
    node = ("--node-memory", "64GiB", "--node-available", "60GiB", "--set", "gpu_memory_utilization=0.7")
    status, out, _ = run("--config", path, *node)
    assert status == 0 and "the CPU build" in out
    phases = json.loads(run("--config", path, *node, "--json")[1])["phases"]
    parts = {part["name"]: part["bytes"] for part in phases[-1]["parts"]}
    assert parts["vLLM's processes"] == 1215 << 20
    assert not [name for name in parts if "CUDA" in name]


def test_keys_that_are_not_worked_out_are_named(run, model, tmp_path) -> None:
    path = config(tmp_path, model, 'device = "cpu"\ngpus_per_node = 2\n')
    out = run("--config", path, *SPARK)[1]
    assert "change the memory: engine.gpus_per_node = 2" in out


def test_a_key_of_another_section_can_be_set(run, model) -> None:
    found = json.loads(run(model, *SPARK, "--json", "--set", "engine.tensor_parallel=1")[1])
    assert found["weights_bytes"] == 89793536
    found = json.loads(run(model, *SPARK, "--json", "--set", "kv_cache_bytes=2GiB")[1])
    assert found["kv_cache_bytes"] == 2 << 30


def test_the_memory_of_this_node_is_read_where_none_is_given(run, model) -> None:
    found = json.loads(run(model, "--json")[1])
    assert found["phases"][0]["parts"][0]["source"] == "measured"
    assert "not given" not in run(model)[1]


def test_a_discrete_gpu_must_be_said(run, model, tmp_path) -> None:
    path = config(tmp_path, model, "[recovery]\nunified_memory = false\n")
    status, _, err = run("--config", path)
    assert status == 2 and "--node-memory" in err
    assert run("--config", path, "--node-memory", "80GiB")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["/no/such/model"], "/no/such/model: not a directory"),
        (["--config", "/no/such.toml"], "/no/such.toml: cannot be read"),
        ([], "give --config FILE, or the folder of a model"),
        (["MODEL", "--set", "x"], "wanted is KEY=VALUE"),
        (["MODEL", "--set", "no_such_key=1"], "--set no_such_key=1: sets no key ("),
        (["MODEL", "--set", "gpu_memory_utilisation=0.8"], "; did you mean gpu_memory_utilization? ("),
        (["MODEL", "--set", "engine.tensor_paralel=1"], "; did you mean engine.tensor_parallel? ("),
        (["MODEL", "--set", "gpu_memory_utilization=2"], "sparkctl: --set gpu_memory_utilization: settings."),
        (
            ["MODEL", "--set", "engine.vllm.extra_args=x"],
            "sparkctl: --set engine.vllm.extra_args: must be JSON",
        ),
        (["MODEL", "--node-memory", "lots"], "--node-memory lots: must be a number of bytes"),
        (["MODEL", "--node-memory", "0"], "must be more than 0"),
        (["MODEL", "--node-memory", "1GiB", "--node-available", "2GiB"], "are more than the node has"),
    ],
)
def test_what_cannot_be_used_is_named(run, model, arguments, told) -> None:
    status, out, err = run(*[model if argument == "MODEL" else argument for argument in arguments])
    assert (status, out) == (2, "")
    assert told in err and "Traceback" not in err


def test_the_sizes_of_one_answer_agree_and_a_refusal_is_said_once(run, model) -> None:
    share = ("--set", "gpu_memory_utilization=0.97")
    status, out, _ = run(model, "--node-memory", "119.7GiB", *share)
    assert status == 1
    cached = re.search(r"([\d.]+ GiB) a rank · a request", out)
    assert cached is not None
    assert out.count("vLLM would refuse") == 1
    (row,) = [line for line in out.splitlines() if line.startswith("init distributed")]
    assert "✗" in row and "vLLM's own check, told below" in row
    advised = json.loads(run(model, "--node-memory", "119.7GiB", *share, *WATCHED, "--json")[1])
    (change,) = [c for c in advised["changes"] if "pays" in c["why"]]
    less = run(
        model, "--node-memory", "119.7GiB", *WATCHED, "--set", f"gpu_memory_utilization={change['after']}"
    )[1]
    left = re.search(r"([\d.]+ GiB) a rank · a request", less)
    assert left is not None
    assert change["why"].endswith(f"the KV cache pays one for one: {cached[1]} becomes {left[1]}")


def test_a_split_that_vllm_refuses_is_said_once_and_with_what_to_do(run, model) -> None:
    out = run(model, *SPARK, "--set", "engine.tensor_parallel=3")[1]
    assert out.count("cannot be") == 1
    assert "only you can: choose engine.tensor_parallel" in out


def test_the_demo_plans_the_demos_model(run, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(client, "DEMO_CONFIG", Path("none.toml"))
    status, _, err = run("--demo")
    assert status == 2 and "none.toml is not there: start it: make demo" in err
    path = config(tmp_path, make_model(tmp_path / "demo"))
    monkeypatch.setattr(client, "DEMO_CONFIG", path)
    status, out, _ = run("--demo", *SPARK)
    assert status == 2
    assert "nothing can be said: weights of less than 1 MiB a rank: " in out
    assert "what to do: start it" in out and "only you can" not in out


def test_every_outcome_has_an_exit_status() -> None:
    assert set(plan.STATUS) == set(Outcome)


def test_names_with_escapes_do_not_reach_the_terminal(run, tmp_path) -> None:
    made, tensors = checkpoints.llama()
    folder = checkpoints.write(tmp_path / "model", {**made, "architectures": ["\x1b[31mEvil"]}, tensors)
    assert "\x1b" not in run(folder, *SPARK)[1]
