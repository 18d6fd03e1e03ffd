"""Where a SQLite file is: `sqlite:///relative.db`, `sqlite:////absolute.db`, `memory://`."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.errors import ConfigError

SYNCHRONOUS = ("off", "normal", "full", "extra")


def parse(url: str) -> tuple[str, str, float]:
    """The path, the level of `synchronous`, and how long to wait for other writers."""
    parts = urlsplit(url)
    if parts.scheme == "memory":
        return ":memory:", "full", 5.0
    options = dict(parse_qsl(parts.query))
    path = unquote(parts.path[1:])
    if parts.netloc or not path:
        raise ConfigError(f"{url}: three slashes and a path, as in sqlite:///holdfast.db or sqlite:////var/lib/app.db")
    synchronous = options.pop("synchronous", "full").lower()
    if synchronous not in SYNCHRONOUS:
        raise ConfigError(f"{url}: synchronous is one of {', '.join(SYNCHRONOUS)}")
    try:
        timeout = float(options.pop("timeout", "5"))
    except ValueError:
        raise ConfigError(f"{url}: timeout is a number of seconds") from None
    if options:
        raise ConfigError(f"{url}: unknown options {sorted(options)}; known are synchronous and timeout")
    return path, synchronous, timeout
