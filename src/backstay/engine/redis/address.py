"""Parse Redis and Valkey URLs into addresses. The text of an address never contains its password."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from backstay.engine.redis.link.credentials import Credentials
from backstay.errors import ConfigError

#: The URL schemes of a TCP connection, each with whether it uses TLS.
SCHEMES = {"redis": False, "rediss": True, "valkey": False, "valkeys": True}
#: The URL schemes of a Unix socket. `unix` is accepted because redis-py uses it.
SOCKETS = ("redis+unix", "valkey+unix", "unix")
PORT = 6379
LONGEST_TIMEOUT = 3600.0
OPTIONS = {"timeout", "connect_timeout", "db"}
TLS_OPTIONS = {"ca", "cert", "key", "insecure_skip_hostname_check"}


class HostPort(NamedTuple):
    """A host and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Address:
    """One server with its credentials and time-outs. `str()` of it contains no secret."""

    host: str = "127.0.0.1"
    port: int = PORT
    db: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    tls: bool = False
    #: Seconds to wait for a reply before the connection is closed.
    timeout: float = 5.0
    connect_timeout: float = 2.0
    #: The file with the certificates of the authorities that are trusted. Empty: the system's authorities.
    ca: str = ""
    #: The file of the client certificate; empty if there is none.
    cert: str = ""
    #: The file of the client certificate's private key; empty if `cert` contains the key, or if there is no
    #: certificate.
    key: str = ""
    check_hostname: bool = True
    #: A Unix socket on this host, instead of host and port.
    path: str = ""
    #: Provides a username and password for each connection, instead of the fields `username` and `password`.
    credentials: Credentials | None = field(default=None, repr=False)

    def __str__(self) -> str:
        if self.path:
            return f"redis+unix://{quote(self.path)}?db={self.db}"
        return f"redis{'s' if self.tls else ''}://{HostPort(self.host, self.port)}/{self.db}"


class Url(NamedTuple):
    """The parts of a URL. `safe` is the URL for messages: without username, password, path and options."""

    scheme: str
    safe: str
    username: str
    password: str
    hosts: tuple[HostPort, ...]
    path: tuple[str, ...]
    options: Mapping[str, str]


def split(url: str, *, port: int = PORT) -> Url:
    """Split a URL with any number of hosts. `port` is the default port."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigError("not a URL; use redis://127.0.0.1:6379/0") from None
    user, _, hosts = parts.netloc.rpartition("@")
    username, _, password = user.partition(":")
    safe = f"{parts.scheme}://{hosts.partition(':')[0]}"  # an error must not show the password
    try:
        found = tuple(_host_port(host, port) for host in hosts.split(",")) if hosts else (HostPort("127.0.0.1", port),)
    except ValueError:
        raise ConfigError(f"{safe}: a port is a number from 1 to 65535, as in {safe}:{port}") from None
    return Url(
        parts.scheme,
        f"{parts.scheme}://{','.join(map(str, found))}",
        unquote(username),
        unquote(password),
        found,
        tuple(unquote(part) for part in parts.path.strip("/").split("/") if part),
        dict(parse_qsl(parts.query, keep_blank_values=True)),
    )


def _host_port(text: str, port: int) -> HostPort:
    one = urlsplit(f"//{text}")
    number = port if one.port is None else one.port
    if number == 0:
        raise ValueError("no such port")
    return HostPort(one.hostname or "127.0.0.1", number)


def build(url: Url, *, db: str, tls: bool, more: Collection[str] = ()) -> Address:
    """Return the address of the first server of a URL, with the URL's options (they apply to all its servers).
    `more`: names of further options that are accepted here, but read by the caller.
    """
    options, safe = url.options, url.safe
    known = OPTIONS | TLS_OPTIONS | set(more)
    if unknown := set(options) - known:
        raise ConfigError(f"{safe}: unknown options {sorted(unknown)}; known are {sorted(known)}")
    if not tls and (odd := sorted(TLS_OPTIONS & set(options))):
        raise ConfigError(f"{safe}: {odd} need TLS; write rediss instead of redis, valkeys instead of valkey")
    if bool(options.get("key")) > bool(options.get("cert")):
        raise ConfigError(f"{safe}: a key needs its certificate: cert=FILE&key=FILE")
    if (skip := options.get("insecure_skip_hostname_check", "no")) not in ("yes", "no"):
        raise ConfigError(f"{safe}: insecure_skip_hostname_check is yes or no")
    try:
        number = int(db or options.get("db", "0"))
        timeout, connect_timeout = seconds(options, "timeout", 5), seconds(options, "connect_timeout", 2)
    except ValueError:
        raise ConfigError(f"{safe}: the database is a number, as in {safe}/0") from None
    if number < 0:
        raise ConfigError(f"{safe}: databases are numbered from 0")
    host, port = url.hosts[0]
    return Address(
        host,
        port,
        number,
        url.username,
        url.password,
        tls,
        timeout,
        connect_timeout,
        options.get("ca", ""),
        options.get("cert", ""),
        options.get("key", ""),
        skip == "no",
    )


def seconds(options: Mapping[str, str], name: str, default: float) -> float:
    """Return a duration option in seconds. Raises ConfigError if it is not a number, or out of range."""
    try:
        value = float(options.get(name, default))
    except ValueError:
        value = 0.0
    if not 0 < value <= LONGEST_TIMEOUT:
        raise ConfigError(f"{name} is a number of seconds above 0 and at most an hour, as in {name}={default:g}")
    return value


def parse(url: str) -> Address:
    """Parse `redis://[user:password@]host[:port][/db][?timeout=5&connect_timeout=2]`."""
    found = split(url)
    if found.scheme in SOCKETS:
        return _socket(found, url)
    if found.scheme not in SCHEMES:
        raise ConfigError(f"unknown Redis scheme {found.scheme!r}; one of {', '.join(SCHEMES)}")
    if len(found.hosts) > 1:
        raise ConfigError(
            f"{found.safe} names several servers: write {found.scheme}+sentinel:// or {found.scheme}+cluster://"
        )
    return build(found, db="/".join(found.path), tls=SCHEMES[found.scheme])


def _socket(found: Url, url: str) -> Address:
    """Parse `redis+unix://[user:password@]/path/to/socket[?db=0]`."""
    hosts = urlsplit(url).netloc.rpartition("@")[2]
    if hosts or not found.path:
        raise ConfigError(
            f"{found.scheme}: a socket is an absolute path, as in {found.scheme}:///run/redis/redis.sock?db=0"
        )
    path = "/" + "/".join(found.path)
    return replace(build(found._replace(safe=f"{found.scheme}://{quote(path)}"), db="", tls=False), path=path)
