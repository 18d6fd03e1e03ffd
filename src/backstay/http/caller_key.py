"""The key that a limit counts a request under: by client address, by user or by API key.

Of `X-Forwarded-For`, only the addresses that trusted proxies have added (at the end) are used. A client can forge the
addresses before them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from backstay.errors import ConfigError
from backstay.http.asgi import Scope

#: Returns the key whose rate limit a request counts against; None if the request is not counted.
KeyFunction = Callable[[Scope], str | Awaitable[str | None] | None]

#: A client usually controls all addresses of a /64 network, so they count as one.
IPV6_PREFIX = 64
#: Longer user names are hashed, because a key has at most 512 bytes.
LONGEST_USER = 100
#: The key of a client without an address: on a Unix socket, or in a test.
UNKNOWN_ADDRESS = "ip:unknown"


class CallerKeys:
    """Computes keys by address, by user or by API key. A request without a user or an API key counts by address."""

    def __init__(self, trusted_proxies: Iterable[str] = (), api_key_header: str = "x-api-key") -> None:
        try:
            self._trusted = [ip_network(proxy, strict=False) for proxy in trusted_proxies]
        except ValueError as error:
            raise ConfigError(f"trusted_proxies lists addresses or networks, as in ['10.0.0.0/8']: {error}") from None
        self._api_key_header = api_key_header.lower().encode()

    def find(self, kind: str) -> KeyFunction:
        """Return the key function of a name: "ip", "user" or "api-key"."""
        found: dict[str, KeyFunction] = {"ip": self.by_ip, "user": self.by_user, "api-key": self.by_api_key}
        if kind not in found:
            raise ConfigError(f"key is one of {', '.join(found)}, or a function of the scope; got {kind!r}")
        return found[kind]

    def by_ip(self, scope: Scope) -> str:
        client = scope.get("client")
        address = _address(client[0]) if client else None
        if address is None:
            return UNKNOWN_ADDRESS
        if self._trusts(address):
            # Each proxy has appended the address that it got the request from. Read the list from its end and skip the
            # trusted proxies: the first other address is the client's.
            for hop in reversed(_hops(scope)):
                known = _address(hop)
                if known is None:
                    break  # the client sent this invalid value, and a trusted proxy forwarded it
                address = known
                if not self._trusts(address):
                    break
        if isinstance(address, IPv6Address):
            return f"ip:{IPv6Network((address, IPV6_PREFIX), strict=False)}"
        return f"ip:{address}"

    def by_user(self, scope: Scope) -> str:
        """Return a key for the user that an authentication middleware (Starlette's, for example) put into the scope."""
        user: Any = scope.get("user")
        if user is None or not getattr(user, "is_authenticated", True):
            return self.by_ip(scope)
        try:
            name = getattr(user, "identity", None)
        except NotImplementedError:
            name = None
        text = str(name or getattr(user, "display_name", None) or user)
        return f"user:{text if len(text) <= LONGEST_USER else _hash(text.encode())}"

    def by_api_key(self, scope: Scope) -> str:
        """Return a hash of the API key as the key of the limit. The engine stores the keys of limits in plain text, so
        they must not contain secrets.
        """
        for name, value in scope["headers"]:
            if name == self._api_key_header and value:
                return f"key:{_hash(value)}"
        return self.by_ip(scope)

    def _trusts(self, address: IPv4Address | IPv6Address) -> bool:
        return any(_within(address, network) for network in self._trusted)


def _hash(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()[:32]


def _within(address: IPv4Address | IPv6Address, network: IPv4Network | IPv6Network) -> bool:
    return address.version == network.version and address in network


def _hops(scope: Scope) -> list[str]:
    values = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
    return [hop.strip() for value in values for hop in value.split(",")]


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an address as proxies write it: bare, with a port, or in brackets. IPv4 mapped to IPv6 becomes IPv4."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
