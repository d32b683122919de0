"""What is known of the host before anything is planned: read once by `survey`, handed to the planners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Node:
    """What the configuration says of this node, read by the daemon's own loader.

    Attributes:
        cluster, name, role: who it is.
        model: the folder of the weights.
        broker: (address, port) of the broker.
        embedded: whether the head's daemon runs that broker.
    """

    cluster: str
    name: str
    role: str
    model: str
    broker: tuple[str, int]
    embedded: bool


@dataclass(frozen=True, slots=True)
class Host:
    """Facts. None = not known.

    Attributes:
        is_root: whether this process may change the system.
        live: the running system; False = a folder that will be one (--root).
        booted: systemd is process 1.
        systemd: its version.
        has_polkit: a polkit that reads rules is there.
        has_journal: systemd-python is there, by which the daemon reads the engine's output.
        hostname: of the machine, its first label.
        bin_dir: where `sparkd` and `sparkctl` of this package are.
        python: the Python that runs them.
        bin_hidden: the folder above them that other users may not enter; empty = none.
        users: the accounts that are there.
        files: path -> content, of those that the plan asked for and that are there.
        open_files: those of them that others than root may read.
        config_access: mode and group of the configuration, such as "640 root".
        present: paths of which the plan wants to know only that they are there.
        links: path -> target.
        active: units of sparkd that run. enabled: those that start at boot.
        node: the configuration, where it is right; `wrong`: what is wrong with it, a line each.
        has_model: the folder of the weights is there.
        broker_error: why the broker could not be reached; empty = it was, or was not asked.
    """

    is_root: bool = True
    live: bool = True
    booted: bool = True
    systemd: int | None = None
    has_polkit: bool = True
    has_journal: bool = True
    hostname: str = ""
    bin_dir: str = "/opt/sparkd/bin"
    python: str = "/opt/sparkd/bin/python3"
    bin_hidden: str = ""
    users: frozenset[str] = frozenset()
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    open_files: frozenset[str] = frozenset()
    config_access: str = ""
    present: frozenset[str] = frozenset()
    links: Mapping[str, str] = field(default_factory=dict)
    active: frozenset[str] = frozenset()
    enabled: frozenset[str] = frozenset()
    node: Node | None = None
    wrong: tuple[str, ...] = ()
    has_model: bool = True
    broker_error: str = ""
