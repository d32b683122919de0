"""What `sparkd check` can see of a configuration from this machine, which may be another than the node's."""

from __future__ import annotations

from pathlib import Path

from sparkd.config.values import Loaded

NETWORKS = Path("/sys/class/net")


def not_seen(loaded: Loaded) -> list[str]:
    """Return what the node will need and this machine does not show, one a line."""
    node, lines = loaded.node, []
    if not _is_folder(Path(loaded.engine.model)):
        lines.append(
            f"engine.model = {loaded.engine.model!r}: no such folder is seen here: every node needs it, "
            "under this path, for the engine's user"
        )
    names = node.interface.split(",") if NETWORKS.is_dir() else []
    lines += [
        f"node.interface = {name!r} of {node.name}: no such network interface here: "
        "`ip -br link` shows those that are"
        for name in names
        if not (NETWORKS / name).exists()
    ]
    return lines


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False
