"""The topics under `sparkd/<cluster>/`, and what each is for.

| topic | retained | kind |
|---|---|---|
| `node/<node>/status` | yes | status |
| `node/<node>/will` | no | will |
| `node/<node>/telemetry` | no | telemetry |
| `node/<node>/report` | no | report |
| `intent` | yes | intent |
| `incident` | no | for people and automations; the daemons do not read it |
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sparkd.wire.names import is_name

ROOT = "sparkd"


class Kind(StrEnum):
    """What a message is."""

    STATUS = "status"
    WILL = "will"
    TELEMETRY = "telemetry"
    REPORT = "report"
    INTENT = "intent"
    INCIDENT = "incident"


RETAINED = (Kind.STATUS, Kind.INTENT)
OF_NODE = (Kind.STATUS, Kind.WILL, Kind.TELEMETRY, Kind.REPORT)
READ = (*OF_NODE, Kind.INTENT)
"""The kinds that daemons read."""


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of one cluster."""

    cluster: str

    def of(self, kind: Kind, node: str) -> str:
        """Return the topic on which *node* publishes *kind*."""
        path = f"node/{node}/{kind}" if kind in OF_NODE else str(kind)
        return f"{ROOT}/{self.cluster}/{path}"

    def filters(self) -> tuple[str, ...]:
        """Return the topic filters that a daemon subscribes to."""
        return tuple(self.of(kind, "+") for kind in READ)

    def parse(self, topic: str) -> tuple[Kind, str | None] | None:
        """Return (kind, node) of *topic*, node None where the topic names none; None = not one of ours."""
        match topic.split("/"):
            case [root, cluster, "node", node, kind] if kind in OF_NODE and is_name(node):
                found: tuple[Kind, str | None] = (Kind(kind), node)
            case [root, cluster, kind] if kind in (Kind.INTENT, Kind.INCIDENT):
                found = (Kind(kind), None)
            case _:
                return None
        return found if (root, cluster) == (ROOT, self.cluster) else None
