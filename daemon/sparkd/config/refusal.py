"""That a configuration is refused, and with which exit code."""

from __future__ import annotations

from collections.abc import Iterable

EX_CONFIG = 78
"""Exit code for what only a person can put right (EX_CONFIG of sysexits.h): retrying does not help."""


class ConfigError(Exception):
    """The configuration cannot be used; `lines` names every error, one a line."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))
