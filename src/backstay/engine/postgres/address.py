"""Parse a PostgreSQL URL into libpq's parameters and Backstay's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from backstay.errors import ConfigError

#: The only option of a URL that is Backstay's and not libpq's.
OURS = "timeout="


@dataclass(frozen=True, slots=True)
class Address:
    """How to reach a server. Printing it never shows the password."""

    parameters: dict[str, Any] = field(repr=False)
    #: Seconds that one batch of operations may take.
    timeout: float = 5.0
    #: Called for each new connection to get its parameters, if they change over time (access tokens); replaces
    #: `parameters`.
    fetch: Callable[[], dict[str, Any]] | None = field(default=None, repr=False)
    #: How messages name this server, if `fetch` provides its parameters, so that the host is not known in advance.
    name: str = ""

    def current(self) -> dict[str, Any]:
        """Return libpq's parameters for a new connection. Raises BackstayError."""
        return self.parameters if self.fetch is None else self.fetch()

    def __str__(self) -> str:
        if self.name:
            return self.name
        known = self.parameters
        host = known.get("host") or known.get("hostaddr") or "localhost"
        port = f":{known['port']}" if known.get("port") else ""
        return f"postgresql://{host}{port}/{known.get('dbname') or known.get('user') or ''}"


def parse(url: str) -> Address:
    """Parse `postgresql://user:password@host:port/database?timeout=5&…`; libpq gets all options except `timeout`."""
    base, _, query = url.partition("?")
    # Split by hand, so that libpq decodes its options itself: `parse_qsl` would turn a plus sign into a space.
    options = query.split("&") if query else []
    theirs = [option for option in options if not option.startswith(OURS)]
    timeout = next((option.removeprefix(OURS) for option in options if option.startswith(OURS)), "5")
    seconds = float(timeout) if timeout.replace(".", "", 1).isdecimal() else 0.0
    if seconds <= 0:
        raise ConfigError(f"timeout in a PostgreSQL URL is in seconds, as in ?timeout=5; got {timeout!r}")
    try:
        parameters = conninfo_to_dict(f"{base}?{'&'.join(theirs)}")
    except ProgrammingError:
        # libpq's message repeats the unreadable part, which may be a password.
        raise ConfigError(
            "this PostgreSQL URL cannot be parsed; write postgresql://user:password@host:5432/database"
        ) from None
    return Address(parameters, seconds)
