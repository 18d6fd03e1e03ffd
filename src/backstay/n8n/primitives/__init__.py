"""The four primitives: n8n workflows that acquire a lock, release it, clean up after a failure, and check a rate limit.

Each exists for two transports, redis and http. They compute with expressions and have no Code nodes, so they need no
task runner, and the same file runs on n8n 1 and 2. Each call of a primitive is one execution in
n8n. An invalid input fails the call and is never replaced by a default.
"""

from __future__ import annotations

from backstay.n8n.model import N8nWorkflow
from backstay.n8n.primitives import clean_up_redis, over_http, over_redis
from backstay.n8n.primitives.builder import WorkflowBuilder
from backstay.n8n.primitives.identity import KEYS, VERSION, PrimitiveIdentity, Transport, id_namespace, identify

__all__ = ["KEYS", "VERSION", "PrimitiveIdentity", "Transport", "identify", "primitive"]

_BUILDERS = {
    "lock_acquisition": {"redis": over_redis.lock_acquisition, "http": over_http.lock_acquisition},
    "lock_release": {"redis": over_redis.lock_release, "http": over_http.lock_release},
    "error_handler_lock_cleanup": {"redis": clean_up_redis.lock_cleanup, "http": over_http.lock_cleanup},
    "rate_limit_check": {"redis": over_redis.rate_limit_check, "http": over_http.rate_limit_check},
}


def primitive(key: str, transport: Transport) -> N8nWorkflow:
    """Return the primitive `key` (such as `lock_acquisition`) as a template. The template contains placeholders and has
    no workflow id, because each environment assigns its own. Raise KeyError when there is no such primitive.
    """
    build = _BUILDERS[key][transport]
    builder = WorkflowBuilder(id_namespace(PrimitiveIdentity(key, transport, VERSION)))
    build(builder)
    mark = {"primitive": key, "transport": transport, "version": VERSION}
    return N8nWorkflow(
        {
            "name": key,
            "nodes": builder.nodes,
            "connections": builder.connections,
            "settings": builder.settings,
            "meta": {"backstay": mark},
        },
        source=f"{key}.template.json",
    )
