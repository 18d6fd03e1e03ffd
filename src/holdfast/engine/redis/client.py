"""Where a redis-py client points. Holdfast takes over its address and sign-in, and makes connections of its own."""

from __future__ import annotations

import ssl
from typing import Any

from holdfast.engine.redis.address import Address
from holdfast.errors import ConfigError

DEFAULT = Address()
#: What cannot be taken over, and would be missed silently.
UNKNOWN = ("credential_provider", "path", "ssl_certfile", "ssl_keyfile", "ssl_ca_data", "ssl_password")


def address_of(client: Any) -> tuple[Address, ssl.SSLContext | None]:
    """The server, and how to trust it. Raises ConfigError for a client that is more than an address."""
    pool = getattr(client, "connection_pool", None)
    if pool is None or "Sentinel" in type(pool).__name__:
        raise ConfigError(f"this {type(client).__name__} is not one server; pass a URL instead")
    options = pool.connection_kwargs
    if odd := [name for name in UNKNOWN if options.get(name)]:
        raise ConfigError(f"this client uses {', '.join(odd)}, which cannot be taken over; pass a URL instead")
    tls = "SSL" in pool.connection_class.__name__
    address = Address(
        host=options.get("host") or "127.0.0.1",
        port=int(options.get("port") or 6379),
        db=int(options.get("db") or 0),
        username=options.get("username") or "",
        password=options.get("password") or "",
        tls=tls,
        timeout=float(options.get("socket_timeout") or DEFAULT.timeout),
        connect_timeout=float(options.get("socket_connect_timeout") or DEFAULT.connect_timeout),
    )
    return address, _trust(options) if tls else None


def _trust(options: dict[str, Any]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"), capath=options.get("ssl_ca_path"))
    if not options.get("ssl_check_hostname", True):
        context.check_hostname = False
    if options.get("ssl_cert_reqs") in ("none", ssl.CERT_NONE):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
