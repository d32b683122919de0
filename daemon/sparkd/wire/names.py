"""What a name may look like on the wire: it becomes a topic level, a metric's label and a file's name."""

from __future__ import annotations

import re

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
INSTANCE_PATTERN = r"[A-Za-z0-9_-]{1,64}"

_NAME = re.compile(NAME_PATTERN)
_INSTANCE = re.compile(INSTANCE_PATTERN)


def is_name(text: str) -> bool:
    """Return whether *text* can name a node or a cluster."""
    return _NAME.fullmatch(text) is not None


def is_instance(text: str) -> bool:
    """Return whether *text* can be the id of a daemon's instance."""
    return _INSTANCE.fullmatch(text) is not None
