"""The pure packages know no clock, no randomness, no environment, no files, no network, no waiting."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "daemon" / "sparkd"
PURE = [
    path for part in ("core", "signals", "engines", "wire") for path in sorted((PACKAGE / part).rglob("*.py"))
] + [PACKAGE / "words.py"]
# The catalogue of signatures is package data: reading it is the one door of a pure package to a file.
MAY_READ_DATA = {"signals/catalogue.py", "signals/loader.py"}
BANNED_MODULES = {
    "asyncio", "datetime", "logging", "os", "pathlib", "random", "secrets", "shutil", "signal", "socket",
    "structlog", "subprocess", "tempfile", "threading", "time", "uuid", "aiohttp", "aiomqtt", "grpc", "psutil",
}  # fmt: skip
IDS = {"ids": lambda path: str(path.relative_to(PACKAGE))}


def imported(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("path", PURE, **IDS)
def test_pure_modules_import_nothing_of_the_world(path: Path) -> None:
    """No await, clock, random, environment, logging, file or network in the pure packages."""
    tree = ast.parse(path.read_text(encoding="utf-8"))

    assert not imported(tree) & BANNED_MODULES
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Await | ast.AsyncFunctionDef)]
    calls = [node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    if str(path.relative_to(PACKAGE)) not in MAY_READ_DATA:
        assert not {"open", "print", "input"} & set(calls)


@pytest.mark.parametrize("path", sorted((PACKAGE / "core").glob("*.py")), **IDS)
def test_the_core_never_iterates_over_a_set(path: Path) -> None:
    """The same events give the same commands under any hash seed."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        iterated = []
        if isinstance(node, ast.For):
            iterated = [node.iter]
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            iterated = [generator.iter for generator in node.generators]
        for target in iterated:
            assert not isinstance(target, ast.Set | ast.SetComp)
            is_set_call = isinstance(target, ast.Call) and getattr(target.func, "id", "") in {"set", "frozenset"}
            assert not is_set_call


def test_broad_excepts_stand_only_at_the_loops_boundaries() -> None:
    """Source pump, executor task, HTTP handler: each logs and counts."""
    sites = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ExceptHandler):
                names = [n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)] if node.type else ["bare"]
                if {"Exception", "BaseException", "bare"} & set(names):
                    sites.append(str(path.relative_to(PACKAGE)))

    assert set(sites) <= {"loop/executor.py", "loop/pumps.py", "api/boundary.py"}
    assert len(sites) <= 3


def test_the_daemon_never_imports_what_it_supervises() -> None:
    """Ray and vLLM are programs to it, of any version."""
    for path in PACKAGE.rglob("*.py"):
        assert not imported(ast.parse(path.read_text(encoding="utf-8"))) & {"ray", "vllm", "torch"}


def test_tests_do_not_sleep() -> None:
    """They wait for events with deadlines."""
    pattern = re.compile(r"\b(time|asyncio)\.sleep\(")
    guilty = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        if path.name != "test_purity.py" and pattern.search(path.read_text(encoding="utf-8")):
            guilty.append(str(path))

    assert not guilty
