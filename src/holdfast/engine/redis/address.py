"""Where a Redis or Valkey server is and how to sign in. The password never shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.errors import ConfigError

SCHEMES = {"redis": False, "rediss": True, "valkey": False, "valkeys": True}
LONGEST_TIMEOUT = 3600.0
OPTIONS = {"timeout", "connect_timeout", "db"}


@dataclass(frozen=True, slots=True)
class Address:
    """One server. `str()` of it is safe to show."""

    host: str = "127.0.0.1"
    port: int = 6379
    db: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    tls: bool = False
    #: A reply must come within this many seconds, or the connection is given up.
    timeout: float = 5.0
    connect_timeout: float = 2.0

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"redis{'s' if self.tls else ''}://{host}:{self.port}/{self.db}"


def parse(url: str) -> Address:
    """`redis://[user:password@]host[:port][/db][?timeout=5&connect_timeout=2]`."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigError("not a URL; use redis://127.0.0.1:6379/0") from None
    if parts.scheme not in SCHEMES:
        raise ConfigError(f"unknown Redis scheme {parts.scheme!r}; one of {', '.join(SCHEMES)}")
    safe = f"{parts.scheme}://{parts.hostname or ''}"  # an error must not show the password
    options = dict(parse_qsl(parts.query))
    if unknown := set(options) - OPTIONS:
        raise ConfigError(f"{safe}: unknown options {sorted(unknown)}; known are {sorted(OPTIONS)}")
    try:
        port = 6379 if parts.port is None else parts.port
        db = int(parts.path.strip("/") or options.get("db", "0"))
        timeout = float(options.get("timeout", "5"))
        connect_timeout = float(options.get("connect_timeout", "2"))
    except ValueError:
        raise ConfigError(f"{safe}: port, database and timeouts are numbers, as in {safe}:6379/0") from None
    if db < 0 or port <= 0 or not (0 < timeout <= LONGEST_TIMEOUT and 0 < connect_timeout <= LONGEST_TIMEOUT):
        raise ConfigError(f"{safe}: ports and timeouts are above 0, timeouts at most an hour, databases 0 or more")
    return Address(
        host=parts.hostname or "127.0.0.1",
        port=port,
        db=db,
        username=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        tls=SCHEMES[parts.scheme],
        timeout=timeout,
        connect_timeout=connect_timeout,
    )
