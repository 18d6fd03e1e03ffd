"""A PostgreSQL URL, taken apart: libpq's own parameters, and ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from backstay.errors import ConfigError

#: The one option that is not libpq's.
OURS = "timeout="


@dataclass(frozen=True, slots=True)
class Address:
    """How to reach a server. Printing it never shows the password."""

    parameters: dict[str, Any] = field(repr=False)
    #: Seconds that one group of operations may take.
    timeout: float = 5.0
    #: Tells the parameters anew for each connection, where they change (tokens).
    fetch: Callable[[], dict[str, Any]] | None = field(default=None, repr=False)
    #: What to call it where the parameters are not known beforehand.
    name: str = ""

    def current(self) -> dict[str, Any]:
        """What libpq is to be told now. Raises errors of our tree."""
        return self.parameters if self.fetch is None else self.fetch()

    def __str__(self) -> str:
        if self.name:
            return self.name
        known = self.parameters
        host = known.get("host") or known.get("hostaddr") or "localhost"
        port = f":{known['port']}" if known.get("port") else ""
        return f"postgresql://{host}{port}/{known.get('dbname') or known.get('user') or ''}"


def parse(url: str) -> Address:
    """`postgresql://user:password@host:port/database?timeout=5&…`: what is not ours goes to libpq."""
    base, _, query = url.partition("?")
    # Libpq reads its own part as it stands: a plus is a plus there.
    options = query.split("&") if query else []
    theirs = [option for option in options if not option.startswith(OURS)]
    timeout = next((option.removeprefix(OURS) for option in options if option.startswith(OURS)), "5")
    seconds = float(timeout) if timeout.replace(".", "", 1).isdecimal() else 0.0
    if seconds <= 0:
        raise ConfigError(f"timeout in a PostgreSQL URL is seconds, as in ?timeout=5; got {timeout!r}")
    try:
        parameters = conninfo_to_dict(f"{base}?{'&'.join(theirs)}")
    except ProgrammingError:
        # Libpq repeats what it could not read, and that may be a password.
        raise ConfigError(
            "this PostgreSQL URL cannot be read; it looks like postgresql://user:password@host:5432/database"
        ) from None
    return Address(parameters, seconds)
