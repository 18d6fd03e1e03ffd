"""Whom a request comes from: the key that a limit counts it under.

An address is taken from `X-Forwarded-For` only as far as trusted proxies wrote it; anybody may write the rest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from backstay.errors import ConfigError
from backstay.http.asgi import Scope

#: A key, or None: this request is not counted.
KeyFunction = Callable[[Scope], str | Awaitable[str | None] | None]

#: Whoever has one address of an IPv6 network has them all.
IPV6_PREFIX = 64
#: Longer names are hashed: keys have at most 512 bytes.
LONGEST_USER = 100
#: A caller without an address: a Unix socket, or a test.
NOWHERE = "ip:unknown"


class Callers:
    """Keys by address, by user or by API key. Who has neither user nor key is counted by address."""

    def __init__(self, trusted_proxies: Iterable[str] = (), api_key_header: str = "x-api-key") -> None:
        try:
            self._trusted = [ip_network(proxy, strict=False) for proxy in trusted_proxies]
        except ValueError as error:
            raise ConfigError(f"trusted_proxies has addresses or networks, as in ['10.0.0.0/8']: {error}") from None
        self._api_key_header = api_key_header.lower().encode()

    def of(self, how: str) -> KeyFunction:
        found: dict[str, KeyFunction] = {"ip": self.by_ip, "user": self.by_user, "api-key": self.by_api_key}
        if how not in found:
            raise ConfigError(f"key is one of {', '.join(found)}, or a function of the scope; got {how!r}")
        return found[how]

    def by_ip(self, scope: Scope) -> str:
        client = scope.get("client")
        address = _address(client[0]) if client else None
        if address is None:
            return NOWHERE
        if self._trusts(address):
            # From the last proxy back to the first: the first whom we do not trust is the caller.
            for hop in reversed(_hops(scope)):
                known = _address(hop)
                if known is None:
                    break  # a trusted proxy passed on what somebody made up
                address = known
                if not self._trusts(address):
                    break
        if isinstance(address, IPv6Address):
            return f"ip:{IPv6Network((address, IPV6_PREFIX), strict=False)}"
        return f"ip:{address}"

    def by_user(self, scope: Scope) -> str:
        """The user that an authentication middleware put into the scope, as Starlette's does."""
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
        """Hashed: a key of a limit is no place for a secret."""
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
    """An address as proxies write it: bare, with a port, in brackets; IPv4 in IPv6 is IPv4."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
