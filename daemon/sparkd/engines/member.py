"""A node's member as a whole: which units it has, each of them rendered, and the digests of the plan."""

from __future__ import annotations

from collections.abc import Sequence

from sparkd.engines.digest import node_digest, shared_digest
from sparkd.engines.model import EngineSpec, NodeSpec, Rendered
from sparkd.engines.ray import render_ray
from sparkd.engines.vllm import render_serve
from sparkd.words import NO_STAMP, Backend, Role, Settings, Stamp, UnitName


def units_of(backend: Backend, role: Role) -> tuple[UnitName, ...]:
    """Return the units that a node of this role has, in the order in which they start."""
    if backend is Backend.MP:
        return (UnitName.SERVE,)
    return (UnitName.RAY, UnitName.SERVE) if role is Role.HEAD else (UnitName.RAY,)


def render_unit(
    unit: UnitName,
    spec: EngineSpec,
    cluster: str,
    node: NodeSpec,
    nodes: Sequence[NodeSpec],
    *,
    settings: Settings,
    stamp: Stamp,
) -> Rendered:
    """Return one unit of *node*. Raises ValueError where this node has no such unit."""
    if unit not in units_of(spec.backend, node.role):
        raise ValueError(f"{node.name} ({node.role}) has no unit {unit} with the backend {spec.backend}")
    if unit is UnitName.RAY:
        return render_ray(spec, cluster, node, nodes[0], settings=settings, stamp=stamp)
    return render_serve(spec, cluster, node, nodes, settings=settings, stamp=stamp)


def digests(spec: EngineSpec, cluster: str, node: NodeSpec, nodes: Sequence[NodeSpec]) -> tuple[str, str]:
    """Return (shared, own) digest of the plan as *node* renders it.

    Settings and stamp change with every generation and travel on the wire by themselves: the digests are
    taken at the engine's default settings and no stamp, so they change only with the configuration.
    """
    units = tuple(
        render_unit(unit, spec, cluster, node, nodes, settings=Settings(), stamp=NO_STAMP)
        for unit in units_of(spec.backend, node.role)
    )
    return shared_digest(spec, nodes, cluster), node_digest(units)
