"""What the configuration amounts to: frozen, complete, checked. The home of the defaults of its own parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from sparkd.engines.model import EngineSpec, NodeSpec

if TYPE_CHECKING:  # a unit of the engine reads this module's paths and has no policy
    from sparkd.core.policy import Policy


@dataclass(frozen=True, slots=True)
class Broker:
    """The MQTT broker.

    Attributes:
        host: where it is; empty in the configuration = embedded.
        port: TCP port.
        embedded: the head's daemon runs it, at the head's address.
        username, password: the account; None = anonymous.
        tls: speak TLS.
        ca_file: the authorities to trust; None = the system's.
        cert_file, key_file: this client's certificate and its key; None = none.
    """

    host: str = ""
    port: int = 1883
    embedded: bool = True
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


@dataclass(frozen=True, slots=True)
class Api:
    """Where this daemon listens.

    Attributes:
        address, port: metrics and the status page; without a login, so on the loopback by default.
        peer_port: the signed view for peers, on `peer_addresses` (this node's own).
        token: where given, the page wants `Authorization: Bearer <token>`; needed beyond the loopback.
        socket: the operator's socket; empty in the configuration = sparkd.sock in the run directory.
    """

    address: str = "127.0.0.1"
    port: int = 9760
    peer_port: int = 9761
    socket: str = ""
    token: str | None = field(default=None, repr=False)
    peer_addresses: tuple[str, ...] = ()


class UnitBackend(StrEnum):
    """What runs the engine's units. `auto`: systemd where this daemon is a unit of it, else children."""

    AUTO = "auto"
    SYSTEMD = "systemd"
    CHILDREN = "children"


AUTO_LOG = "auto"
JOURNAL = "journal"


@dataclass(frozen=True, slots=True)
class Paths:
    """Where this daemon keeps things, and where it reads.

    Attributes:
        state_dir, log_dir, run_dir: what must survive, logs of units, what may go with a reboot.
        kernel_log: the kernel's records, or what stands in for them; `journal`; `auto` = the journal where
            units are systemd's, else /dev/kmsg; empty = not read.
        signatures_dir: further signatures of the site.
        guard_status, guard_dir: the memory guard's status, and the directory of its records.
    """

    state_dir: str = "/var/lib/sparkd"
    log_dir: str = "/var/log/sparkd"
    run_dir: str = "/run/sparkd"
    kernel_log: str = AUTO_LOG
    signatures_dir: str = "/etc/sparkd/signatures.d"
    guard_status: str = "/run/sparkd-guard/status"
    guard_dir: str = "/var/lib/sparkd-guard"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The whole configuration as this node uses it.

    Attributes:
        cluster: the cluster's name.
        policy: what the core may know.
        engine: what is served.
        nodes: all nodes, head first; node: this one.
        broker, api, paths: the daemon's own surroundings.
        units: what runs the engine's units.
        key: the cluster key that signs messages.
        notes: what an operator should know although it is no error.
    """

    cluster: str
    policy: Policy
    engine: EngineSpec
    nodes: tuple[NodeSpec, ...]
    node: NodeSpec
    broker: Broker
    api: Api
    paths: Paths
    key: bytes = field(repr=False)
    units: UnitBackend = UnitBackend.AUTO
    notes: tuple[str, ...] = ()

    @property
    def api_key(self) -> str | None:
        """The key that the engine's API asks for (VLLM_API_KEY in engine.env); None = it asks for none."""
        return dict(self.engine.env).get("VLLM_API_KEY")
