"""Whether a workflow is one of the primitives: by the mark in its file, or by the ids of its nodes, which n8n keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from backstay.n8n.model import Workflow
from backstay.n8n.patch.nodes import node_id

Transport = Literal["redis", "http"]
TRANSPORTS: tuple[Transport, ...] = ("redis", "http")
KEYS = ("lock_acquisition", "lock_release", "error_handler_lock_cleanup", "rate_limit_check")
#: Counts up when what a primitive does, takes or gives changes.
VERSION = 1


@dataclass(frozen=True, slots=True)
class Identity:
    key: str
    transport: Transport
    version: int


def family(identity: Identity) -> str:
    """What the ids of a primitive's nodes are made from."""
    return f"{identity.key}/{identity.transport}/{identity.version}"


def identify(workflow: Workflow) -> Identity | None:
    """None: it is nobody's that we know. Through n8n's API a workflow comes back without the mark."""
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
    return next((one for one in _ALL if any(node_id(family(one), name) == found for name, found in ids)), None)


_ALL = tuple(
    Identity(key, transport, version) for key in KEYS for transport in TRANSPORTS for version in range(1, VERSION + 1)
)
