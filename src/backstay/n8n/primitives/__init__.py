"""The four primitives, for both transports, as templates: written here, read by n8n.

Edit Fields, If, Crypto and expressions do everything, so that they need no task runner and are the same file for n8n 1
and 2. Each call of one is one execution; what is not right about its input stops it, and nothing is done by default
that the caller may not have meant.
"""

from __future__ import annotations

from backstay.n8n.model import Workflow
from backstay.n8n.primitives import clean_up_redis, over_http, over_redis
from backstay.n8n.primitives.builder import Drawing
from backstay.n8n.primitives.identity import KEYS, VERSION, Identity, Transport, family, identify

__all__ = ["KEYS", "VERSION", "Identity", "Transport", "identify", "primitive"]

_DRAWN = {
    "lock_acquisition": {"redis": over_redis.lock_acquisition, "http": over_http.lock_acquisition},
    "lock_release": {"redis": over_redis.lock_release, "http": over_http.lock_release},
    "error_handler_lock_cleanup": {"redis": clean_up_redis.lock_cleanup, "http": over_http.lock_cleanup},
    "rate_limit_check": {"redis": over_redis.rate_limit_check, "http": over_http.rate_limit_check},
}


def primitive(key: str, transport: Transport) -> Workflow:
    """A template with placeholders inside, and without an id: that is its environment's. Raises KeyError."""
    draw = _DRAWN[key][transport]
    drawing = Drawing(family(Identity(key, transport, VERSION)))
    draw(drawing)
    mark = {"primitive": key, "transport": transport, "version": VERSION}
    return Workflow(
        {
            "name": key,
            "nodes": drawing.nodes,
            "connections": drawing.connections,
            "settings": drawing.settings,
            "meta": {"backstay": mark},
        },
        source=f"{key}.template.json",
    )
