"""Tell whether a workflow is a primitive, and which one: by the marker in the file, or by its node ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from backstay.n8n.model import N8nWorkflow
from backstay.n8n.patch.nodes import node_id

Transport = Literal["redis", "http"]
TRANSPORTS: tuple[Transport, ...] = ("redis", "http")
KEYS = ("lock_acquisition", "lock_release", "error_handler_lock_cleanup", "rate_limit_check")
#: Increment it when a primitive's behaviour, inputs or outputs change.
VERSION = 1


@dataclass(frozen=True, slots=True)
class PrimitiveIdentity:
    """Which primitive a workflow is, for which transport, in which version."""

    key: str
    transport: Transport
    version: int


def id_namespace(identity: PrimitiveIdentity) -> str:
    """Return the text from which the ids of a primitive's nodes are derived."""
    return f"{identity.key}/{identity.transport}/{identity.version}"


def identify(workflow: N8nWorkflow) -> PrimitiveIdentity | None:
    """Return which primitive the workflow is; None when it is none. A workflow that was read through n8n's API has lost
    the marker (`meta.backstay`), but kept its node ids.
    """
    match workflow.data.get("meta"):
        case {
            "backstay": {
                "primitive": str() as key,
                "transport": "redis" | "http" as transport,
                "version": int() as version,
            }
        }:
            return PrimitiveIdentity(key, transport, version) if key in KEYS else None
        case _:
            return _by_nodes(workflow)


def _by_nodes(workflow: N8nWorkflow) -> PrimitiveIdentity | None:
    ids = {(node.name, node.id) for node in workflow.triggers}
    return next((one for one in _ALL if any(node_id(id_namespace(one), name) == found for name, found in ids)), None)


_ALL = tuple(
    PrimitiveIdentity(key, transport, version)
    for key in KEYS
    for transport in TRANSPORTS
    for version in range(1, VERSION + 1)
)
