"""The four primitives as workflow templates, for both transports.

They consist of Edit Fields, If, Crypto and expressions only, so they need no task runner and the same file runs on n8n
1 and 2. Each call is one execution. Invalid input stops the call; no default replaces a value that the caller passed.
"""

from __future__ import annotations

from backstay.n8n.model import Workflow
from backstay.n8n.primitives import clean_up_redis, over_http, over_redis
from backstay.n8n.primitives.builder import WorkflowBuilder
from backstay.n8n.primitives.identity import KEYS, VERSION, Identity, Transport, id_namespace, identify

__all__ = ["KEYS", "VERSION", "Identity", "Transport", "identify", "primitive"]

_BUILDERS = {
    "lock_acquisition": {"redis": over_redis.lock_acquisition, "http": over_http.lock_acquisition},
    "lock_release": {"redis": over_redis.lock_release, "http": over_http.lock_release},
    "error_handler_lock_cleanup": {"redis": clean_up_redis.lock_cleanup, "http": over_http.lock_cleanup},
    "rate_limit_check": {"redis": over_redis.rate_limit_check, "http": over_http.rate_limit_check},
}


def primitive(key: str, transport: Transport) -> Workflow:
    """Return a template with placeholders and without an id, which each environment assigns. Raise KeyError."""
    build = _BUILDERS[key][transport]
    builder = WorkflowBuilder(id_namespace(Identity(key, transport, VERSION)))
    build(builder)
    mark = {"primitive": key, "transport": transport, "version": VERSION}
    return Workflow(
        {
            "name": key,
            "nodes": builder.nodes,
            "connections": builder.connections,
            "settings": builder.settings,
            "meta": {"backstay": mark},
        },
        source=f"{key}.template.json",
    )
