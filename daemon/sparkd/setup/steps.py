"""What is to be done, as data; and how it is told."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH_MAX = 60


@dataclass(frozen=True, slots=True)
class Write:
    """Put a file in place, at once and whole.

    Attributes:
        path: where, as the host sees it (below --root it is another place).
        content: what is in it.
        why: what the file does.
        word: `new`, `replace`, `keep .old` or `offer`.
        mode: its permissions. owner: its user and group.
    """

    path: str
    content: bytes
    why: str
    word: str = "new"
    mode: int = 0o644
    owner: str = "root"


@dataclass(frozen=True, slots=True)
class Protect:
    """Take a file away from everybody but its owner, root, and *group*."""

    path: str
    why: str
    mode: int = 0o600
    group: str = "root"


@dataclass(frozen=True, slots=True)
class Link:
    """Make a symbolic link."""

    path: str
    target: str
    why: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Change nothing; only said."""

    path: str
    why: str
    word: str = "unchanged"


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a file or link, or a whole folder."""

    path: str
    why: str
    tree: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """Run a program.

    Attributes:
        argv: the program and its arguments.
        why: what it is for.
        must: its failure ends the work; else it is only told.
    """

    argv: tuple[str, ...]
    why: str
    must: bool = True


Step = Write | Protect | Link | Keep | Remove | Run


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a command would do.

    Attributes:
        title: what is done, on what.
        steps: in their order.
        facts: what was found out, and how.
        refusals: why nothing of it is done; each says what to do.
        warnings: what a person should know.
        after: what to type next.
    """

    title: str
    steps: tuple[Step, ...] = ()
    facts: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do."""
        return all(isinstance(step, Keep) for step in self.steps)


def told(step: Step) -> tuple[str, str, str]:
    """Return (word, what, why) of a step; the content of a file is not in it."""
    match step:
        case Write(path, _, why, word):
            return word, path, why
        case Protect(path, why):
            return "protect", path, why
        case Link(path, target, why):
            return "link", f"{path} -> {target}", why
        case Keep(path, why, word):
            return word, path, why
        case Remove(path, why, tree):
            return "remove", f"{path}/" if tree else path, why
        case Run(argv, why):
            return "run", shlex.join(argv), why


def step_lines(steps: Sequence[Step]) -> list[str]:
    """Return one line for each step, in columns."""
    rows = [told(step) for step in steps]
    words = max((len(word) for word, _, _ in rows), default=0)
    widths = [len(what) for _, what, _ in rows if len(what) <= WIDTH_MAX]
    width = max(widths, default=0)
    return [f"  {word:<{words}}  {what:<{width}}  {why}" for word, what, why in rows]


def fact_lines(plan: Plan) -> list[str]:
    """Return what was found out."""
    return [f"  · {line}" for line in plan.facts]


def warning_lines(plan: Plan) -> list[str]:
    """Return what a person should know."""
    return [f"! {line}" for line in plan.warnings]


def plan_lines(plan: Plan) -> list[str]:
    """Return the whole plan for a terminal; of a refused one, why."""
    steps = [] if plan.refusals else step_lines(plan.steps)
    refusals = [f"✗ {line}" for line in plan.refusals]
    return [plan.title, *fact_lines(plan), *steps, *warning_lines(plan), *refusals]
