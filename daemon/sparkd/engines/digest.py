"""Digests of a plan: what must be equal on all nodes, and what one node would execute."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

from sparkd.engines.executed import digest_of
from sparkd.engines.model import EngineSpec, NodeSpec, Rendered
from sparkd.releases import release
from sparkd.words import Backend


def shared_digest(spec: EngineSpec, nodes: Sequence[NodeSpec], cluster: str) -> str:
    """Return the digest of what must be equal on all nodes; paths and environments of one node are not in it.

    Over Ray the head's path of the model is what every worker opens, so there it must be equal.
    """
    model = spec.model if spec.backend is Backend.RAY else spec.model.rstrip("/").rpartition("/")[2]
    return sha256_of(
        {
            "cluster": cluster,
            "nodes": [(node.name, node.role, node.rank, node.address) for node in nodes],
            "model": (model, spec.served_name),
            "sizes": (spec.tensor_parallel, spec.pipeline_parallel, spec.gpus_per_node),
            "backend": (spec.backend, spec.device),
            "ports": (spec.api_port, spec.ray_port, spec.master_port),
            "ray_auth": spec.ray_auth_token_path is not None,
            "health": (spec.health_period_ms, spec.health_timeout_ms, spec.health_failures),
            "execute_timeout_s": spec.execute_timeout_s,
            "arguments": (spec.extra_args, spec.ray_extra_args),
            "env": sorted(spec.env),
            "versions": (release(spec.vllm_version), release(spec.ray_version)),
        }
    )


def node_digest(units: Iterable[Rendered]) -> str:
    """Return the digest of what a node would execute, less what changes with the stamp."""
    return digest_of((unit.unit.value, unit.argv, unit.env) for unit in units)


def context_of(spec: EngineSpec, nodes: Sequence[NodeSpec], kernel: str, driver: str) -> str:
    """Return what settings and paces are learned with (`core.context`); an empty *driver* is unknown."""
    engine = sha256_of(
        {
            "model": spec.model,
            "versions": (spec.vllm_version, spec.ray_version, kernel),
            "sizes": (spec.backend, spec.device, spec.tensor_parallel, spec.pipeline_parallel),
            "nodes": [node.name for node in nodes],
            "arguments": spec.extra_args,
        }
    )
    return f"{engine[:16]}/{sha256_of(driver)[:16] if driver else '?'}"


def sha256_of(value: object) -> str:
    """Hex SHA-256 over the value's JSON with sorted keys and no blanks."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
