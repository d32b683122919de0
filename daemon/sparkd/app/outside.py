"""The adapters of one daemon, built from its configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from sparkd.adapters import machine, reach
from sparkd.adapters.guard import Guard
from sparkd.adapters.model_files import LocalModel
from sparkd.adapters.mqtt import BrokerOptions, MqttBus
from sparkd.adapters.peer import HttpPeerView, PeerAddress
from sparkd.adapters.ray_table import GcsTable
from sparkd.adapters.vllm_api import VllmApi
from sparkd.app.model import local_model, sizing_of
from sparkd.app.unit_backend import UnitsBackend, backend_of
from sparkd.config import Loaded
from sparkd.engines.lines import read_line
from sparkd.engines.member import render_unit
from sparkd.engines.model import Rendered
from sparkd.intake.logpump import LogPump
from sparkd.intake.pump import Intake
from sparkd.intake.signature_files import with_site_signatures
from sparkd.loop.executor import World
from sparkd.ports import Clock, Emit
from sparkd.signals.catalogue import Catalogue, packaged_catalogue
from sparkd.signals.match import Places
from sparkd.words import Settings, Stamp, UnitName

if TYPE_CHECKING:
    from sparkd.adapters.model_unit import ModelByUnit

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What adapters tell beside events: events' sink, a twin's instance, dropped messages, the end."""

    emit: Emit
    twin: Callable[[str], None]
    dropped: Callable[[str, str, str], None]
    end: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Outside:
    """The adapters that live as long as the daemon."""

    backend: UnitsBackend
    pump: LogPump
    bus: MqttBus
    api: VllmApi
    ray: GcsTable
    model: LocalModel | ModelByUnit
    world: World

    async def close(self) -> None:
        """Release everything; no unit is ended."""
        for part in (self.pump, self.backend, self.api, self.ray, self.model):
            await part.close()


def connect(
    loaded: Loaded, instance: str, predecessors: frozenset[str], clock: Clock, told: Callbacks
) -> Outside:
    """Return the adapters; nothing is connected or started yet."""
    spec, node = loaded.engine, loaded.node
    pump = LogPump(Intake(node.name, _catalogue(loaded), read_line, _places(loaded)), clock, told.emit)
    backend = backend_of(loaded, pump, told.emit)
    bus = _bus(loaded, instance, predecessors, clock, told)
    api = VllmApi(_api_host(loaded), spec.api_port, spec.served_name, clock, api_key=loaded.api_key)
    token = None if spec.ray_auth_token_path is None else Path(spec.ray_auth_token_path)
    ray = GcsTable(f"{loaded.nodes[0].address}:{spec.ray_port}", token_path=token)
    model = _model(loaded, backend)
    world = World(
        units=backend.units,
        sources=pump,
        bus=bus,
        peers=_peer_view(loaded, clock),
        ray=ray,
        api=api,
        guard=_guard(loaded, clock),
        model=model,
        render=_renderer(loaded),
        end=told.end,
    )
    return Outside(backend, pump, bus, api, ray, model, world)


def _guard(loaded: Loaded, clock: Clock) -> Guard:
    """Return the way to this node's memory guard, whether there is one or not."""
    paths = loaded.paths
    return Guard(
        clock,
        loaded.node.name,
        floors=Path(paths.run_dir) / "guard" / "floors",
        status=Path(paths.guard_status),
        state=Path(paths.guard_dir),
        boot=machine.boot_id(),
    )


def _model(loaded: Loaded, backend: UnitsBackend) -> LocalModel | ModelByUnit:
    """Return the eyes on the model's files; under systemd also those of the engine's user."""
    own = local_model(loaded)
    if not backend.under_systemd:
        return own
    from sparkd.adapters.model_unit import ModelByUnit  # with the bus's library, only where it is used

    return ModelByUnit(own, Path(loaded.paths.run_dir), lambda found: found.sized(*sizing_of(loaded)))


def _catalogue(loaded: Loaded) -> Catalogue:
    """Return the packaged signatures with the site's; a file with a mistake is told and left out."""
    folder = Path(loaded.paths.signatures_dir)
    catalogue, problems = with_site_signatures(packaged_catalogue(), folder)
    for problem in problems:
        log.error("signatures left out", problem=problem)
    return catalogue


def _bus(
    loaded: Loaded, instance: str, predecessors: frozenset[str], clock: Clock, told: Callbacks
) -> MqttBus:
    broker = loaded.broker
    options = BrokerOptions(
        host=broker.host,
        port=broker.port,
        username=broker.username,
        password=broker.password,
        tls=broker.tls,
        ca_file=broker.ca_file,
        cert_file=broker.cert_file,
        key_file=broker.key_file,
    )
    return MqttBus(
        broker=options,
        key=loaded.key,
        cluster=loaded.cluster,
        node=loaded.node.name,
        instance=instance,
        predecessors=predecessors,
        nodes=tuple(node.name for node in loaded.nodes),
        clock=clock,
        emit=told.emit,
        on_twin=told.twin,
        on_drop=told.dropped,
    )


def _peer_view(loaded: Loaded, clock: Clock) -> HttpPeerView:
    port = loaded.api.peer_port
    peers = {
        node.name: tuple(
            PeerAddress(way, address, port)
            for way, address in (("fabric", node.address), ("management", node.management_address))
            if address
        )
        for node in loaded.nodes
        if node.name != loaded.node.name
    }
    return HttpPeerView(
        key=loaded.key,
        cluster=loaded.cluster,
        peers=peers,
        clock=clock,
        look=reach.look,
        received=reach.received_bytes,
    )


def _renderer(loaded: Loaded) -> Callable[[UnitName, Stamp, Settings], Rendered]:
    def render(unit: UnitName, stamp: Stamp, settings: Settings) -> Rendered:
        spec, nodes = loaded.engine, loaded.nodes
        rendered = render_unit(unit, spec, loaded.cluster, loaded.node, nodes, settings=settings, stamp=stamp)
        for warning in rendered.warnings:
            log.warning("engine", unit=unit, warning=warning)
        return rendered

    return render


def _api_host(loaded: Loaded) -> str:
    """Return where the head asks its own API server: where it listens, else the head's address."""
    listens = loaded.engine.api_host
    return loaded.nodes[0].address if listens in {"", "0.0.0.0", "::"} else listens  # noqa: S104


def _places(loaded: Loaded) -> Places:
    """Return what tells a node from an address or a rank: vLLM fills node after node, the head first."""
    nodes, each = loaded.nodes, loaded.engine.gpus_per_node
    addresses = {a: n.name for n in nodes for a in (n.address, n.management_address) if a}
    ranks = {rank: nodes[rank // each].name for rank in range(len(nodes) * each)}
    return Places(addresses=addresses, ranks=ranks, head=nodes[0].name)
