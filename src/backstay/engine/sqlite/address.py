"""Parse SQLite URLs: `sqlite:///relative.db`, `sqlite:////absolute.db`, `memory://`."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit

from backstay.errors import ConfigError

LONGEST_TIMEOUT = 3600.0
SYNCHRONOUS = ("off", "normal", "full", "extra")


def parse(url: str) -> tuple[str, str, float]:
    """Return the path, the level of `synchronous`, and the seconds to wait for other writers."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    if parts.scheme == "memory":
        if options or parts.netloc or parts.path.strip("/"):
            raise ConfigError(f"{url}: memory:// takes no name and no options")
        return ":memory:", "full", 5.0
    path = unquote(parts.path[1:])
    if parts.netloc or not path:
        raise ConfigError(
            f"{url}: a SQLite URL has three slashes and a path, as in sqlite:///backstay.db or sqlite:////var/lib/app.db"
        )
    synchronous = options.pop("synchronous", "full").lower()
    if synchronous not in SYNCHRONOUS:
        raise ConfigError(f"{url}: synchronous is one of {', '.join(SYNCHRONOUS)}")
    try:
        timeout = float(options.pop("timeout", "5"))
    except ValueError:
        raise ConfigError(f"{url}: timeout is a number of seconds") from None
    if not 0 < timeout <= LONGEST_TIMEOUT:
        raise ConfigError(f"{url}: timeout is above 0 and at most {LONGEST_TIMEOUT:g} seconds")
    if options:
        raise ConfigError(f"{url}: unknown options {sorted(options)}; known are synchronous and timeout")
    return path, synchronous, timeout
