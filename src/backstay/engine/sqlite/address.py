"""Parse SQLite URLs: `sqlite:///relative.db`, `sqlite:////absolute.db`, `memory://`."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit

from backstay.engine.sqlite.file_mode import PRIVATE, parse_mode
from backstay.errors import ConfigError

LONGEST_TIMEOUT = 3600.0
SYNCHRONOUS = ("off", "normal", "full", "extra")


def parse(url: str) -> tuple[str, str, float, int]:
    """Parse a SQLite URL. Returns the path of the file, the value for SQLite's PRAGMA synchronous, for how many seconds
    the engine waits while another process writes, and the mode of new files.
    """
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    if parts.scheme == "memory":
        if options or parts.netloc or parts.path.strip("/"):
            raise ConfigError(f"{url}: memory:// takes no name and no options")
        return ":memory:", "full", 5.0, PRIVATE
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
    file_mode = parse_mode(options.pop("file_mode", f"{PRIVATE:o}"))
    if file_mode is None:
        raise ConfigError(f"{url}: file_mode is octal, and the owner can read and write: 600, 640, 660 or 666")
    if options:
        raise ConfigError(f"{url}: unknown options {sorted(options)}; known are synchronous, timeout and file_mode")
    return path, synchronous, timeout, file_mode
