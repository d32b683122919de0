"""The guard imports the standard library, and of that only what is small."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import sparkd.guard

FOLDER = Path(sparkd.guard.__file__).parent
# Each of these costs more memory than the whole guard, or starts threads and processes of its own.
LARGE = {
    "json",
    "re",
    "argparse",
    "configparser",
    "logging",
    "asyncio",
    "subprocess",
    "typing",
    "dataclasses",
}
LARGE |= {"pathlib", "threading", "socket", "tempfile", "shutil", "random"}


def test_it_imports_nothing_of_the_rest_and_nothing_installed() -> None:
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.startswith("sparkd.guard") or name.split(".")[0] in sys.stdlib_module_names, path


def test_what_it_loads_is_small() -> None:
    """Asked of a process that has just loaded it, beside what the interpreter loads by itself."""
    path = f"import sys; sys.path.insert(0, {str(FOLDER.parents[1])!r})"
    code = "before = set(sys.modules); import sparkd.guard.__main__; print(*set(sys.modules) - before)"
    bare = [sys.executable, "-S", "-c", f"{path}; {code}"]
    done = subprocess.run(bare, capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    assert "sparkd.guard.watch" in loaded
    assert sorted(loaded & LARGE) == []
