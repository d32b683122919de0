"""The house's size rules, as tests: small functions, small modules, no god objects, telling names."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "daemon" / "sparkd"
MODULES = sorted(PACKAGE.rglob("*.py"))
BANNED_NAMES = ("manager", "helper", "utils", "util", "misc")


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def functions(path: Path) -> list[tuple[str, int]]:
    """Return (name, lines) of every function: of its body without docstring, decorators and signature."""
    found = []
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            told = ast.get_docstring(node) is not None and len(node.body) > 1
            body = node.body[1:] if told else node.body
            lines = body[-1].end_lineno - body[0].lineno + 1
            found.append((f"{path.relative_to(PACKAGE)}:{node.name}", lines))
    return found


ALL_FUNCTIONS = [entry for path in MODULES for entry in functions(path)]


def test_functions_are_small() -> None:
    """Median at most 10 lines, 95th percentile at most 40, none over 50."""
    lengths = sorted(length for _, length in ALL_FUNCTIONS)

    too_long = [entry for entry in ALL_FUNCTIONS if entry[1] > 50]
    assert not too_long
    assert lengths[len(lengths) // 2] <= 10
    assert lengths[int(len(lengths) * 0.95)] <= 40


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_and_classes_are_small(path: Path) -> None:
    """Modules at most 400 lines; classes at most 200 lines and 15 methods."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ClassDef):
            methods = [m for m in node.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef)]
            assert node.end_lineno - node.lineno < 200, node.name
            assert len(methods) <= 15, node.name


def test_no_empty_words_in_names() -> None:
    """A `Manager` or `utils` is a place where things get lost."""
    names = [path.stem for path in MODULES]
    for path in MODULES:
        names += [node.name for node in ast.walk(parse(path)) if isinstance(node, ast.ClassDef)]

    assert not [name for name in names if any(bad in name.lower() for bad in BANNED_NAMES)]
