"""Identify the primitives: by the marker in the file, or by their node ids, which n8n preserves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from backstay.n8n.model import Workflow
from backstay.n8n.patch.nodes import node_id

Transport = Literal["redis", "http"]
TRANSPORTS: tuple[Transport, ...] = ("redis", "http")
KEYS = ("lock_acquisition", "lock_release", "error_handler_lock_cleanup", "rate_limit_check")
#: Increment it when a primitive's behaviour, inputs or outputs change.
VERSION = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """Which primitive a workflow is."""

    key: str
    transport: Transport
    version: int


def id_namespace(identity: Identity) -> str:
    """Return the seed of a primitive's node ids."""
    return f"{identity.key}/{identity.transport}/{identity.version}"


def identify(workflow: Workflow) -> Identity | None:
    """Return which primitive the workflow is; None when it is not one. n8n's API drops the marker, so node ids
    decide then.
    """
    match workflow.data.get("meta"):
        case {
            "backstay": {
                "primitive": str() as key,
                "transport": "redis" | "http" as transport,
                "version": int() as version,
            }
        }:
            return Identity(key, transport, version) if key in KEYS else None
        case _:
            return _by_nodes(workflow)


def _by_nodes(workflow: Workflow) -> Identity | None:
    ids = {(node.name, node.id) for node in workflow.triggers}
    return next((one for one in _ALL if any(node_id(id_namespace(one), name) == found for name, found in ids)), None)


_ALL = tuple(
    Identity(key, transport, version) for key in KEYS for transport in TRANSPORTS for version in range(1, VERSION + 1)
)
