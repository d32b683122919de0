"""The pure packages know no clock, no randomness, no environment, no files, no network, no waiting."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "daemon" / "sparkd"
PURE = [
    path
    for part in ("core", "signals", "engines", "sizing", "wire")
    for path in sorted((PACKAGE / part).rglob("*.py"))
] + [PACKAGE / "releases.py", PACKAGE / "words.py"]
# Setting a node up is planned without touching it; these five look and do.
ACTING = {"apply.py", "package.py", "probe.py", "survey.py", "tls.py"}
PURE += [path for path in sorted((PACKAGE / "setup").glob("*.py")) if path.name not in ACTING]
# The catalogue of signatures is package data: reading it is the one door of a pure package to a file.
MAY_READ_DATA = {"signals/catalogue.py", "signals/loader.py"}
BANNED_MODULES = {
    "asyncio", "datetime", "logging", "os", "pathlib", "random", "secrets", "shutil", "signal", "socket",
    "structlog", "subprocess", "tempfile", "threading", "time", "uuid", "aiohttp", "aiomqtt", "grpc",
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
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if str(path.relative_to(PACKAGE)) not in MAY_READ_DATA:
        assert not {"open", "print", "input"} & {f.id for f in calls if isinstance(f, ast.Name)}


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
            if isinstance(target, ast.Call):
                assert getattr(target.func, "id", "") not in {"set", "frozenset"}


def test_broad_excepts_stand_only_at_the_loops_boundaries() -> None:
    """Source pump, executor task, HTTP handler: each logs and counts."""
    sites = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ExceptHandler):
                kinds = ast.walk(node.type) if node.type else ()
                names = {n.id for n in kinds if isinstance(n, ast.Name)}
                if node.type is None or {"Exception", "BaseException"} & names:
                    sites.append(str(path.relative_to(PACKAGE)))

    assert set(sites) <= {"loop/executor.py", "loop/pumps.py", "api/http.py"}
    assert len(sites) <= 3


def test_the_daemon_never_imports_what_it_supervises() -> None:
    """Ray and vLLM are programs to it, of any version."""
    for path in PACKAGE.rglob("*.py"):
        assert not imported(ast.parse(path.read_text(encoding="utf-8"))) & {"ray", "vllm", "torch"}


def sleeps(node: ast.AST) -> bool:
    """Return whether *node* contains a call of sleep outside a wait for an event with a deadline."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in {"until", "wait_until"}:
        return False
    called = node.func if isinstance(node, ast.Call) else None
    if isinstance(called, ast.Attribute) and called.attr == "sleep":
        return True
    return any(sleeps(child) for child in ast.iter_child_nodes(node))


def test_tests_do_not_sleep() -> None:
    """They wait for events with deadlines."""
    tests = sorted((ROOT / "tests").rglob("test_*.py"))

    assert not [path for path in tests if sleeps(ast.parse(path.read_text(encoding="utf-8")))]
