"""Runs mutmut with a quicker way to test a mutant: tests are collected once, each fork runs its own.

To start pytest anew for each mutant takes ten times as long as the tests that find most of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import pytest
from _pytest.config import _prepareconfig
from _pytest.main import Session
from _pytest.runner import runtestprotocol
from mutmut import __main__ as mutmut
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.runners.harness import PytestRunner
from mutmut.utils.file_utils import change_cwd
from mutmut.workers import isolation

KILLED, SURVIVED = 1, 0


class CollectedOnce(PytestRunner):
    """Collects before the first fork; each fork runs what is selected until the first failure."""

    items: tuple[pytest.Item, ...] = ()

    def run_forced_fail(self) -> int:
        """The last that is run before the first mutant."""
        result = super().run_forced_fail()
        set_mutant_under_test("")
        with change_cwd("mutants"):
            self.items = self._collect()
        return result

    def _collect(self) -> tuple[pytest.Item, ...]:
        arguments = ["--rootdir=.", "--capture=no", "-qq", *self._pytest_add_cli_args]
        config = _prepareconfig([*arguments, *self._pytest_add_cli_args_test_selection])
        config._do_configure()
        session = Session.from_config(config)
        config.hook.pytest_sessionstart(session=session)
        return tuple(session.perform_collect())

    def run_tests(self, *, mutant_name: str | None, tests: Iterable[str]) -> int:
        """Run the tests of a mutant; without one, as pytest does."""
        if mutant_name is None:
            return super().run_tests(mutant_name=mutant_name, tests=tests)
        wanted = set(tests)
        with change_cwd("mutants"):
            for item in self.items:
                if item.nodeid in wanted and _fails(item):
                    return KILLED
        return SURVIVED


def _fails(item: pytest.Item) -> bool:
    item.session._setupstate.teardown_exact(None)
    return any(report.failed for report in runtestprotocol(item, log=False, nextitem=None))


if __name__ == "__main__":
    sys.modules["mutmut.__main__"] = mutmut
    isolation.PytestRunner = CollectedOnce
    mutmut.cli()
