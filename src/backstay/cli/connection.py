"""The engine and namespace that a command connects to, from the global options."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer

from backstay import Backstay as AsyncBackstay
from backstay.assembly.engines import find_database_file
from backstay.engine.base import Engine
from backstay.errors import ConfigError
from backstay.sync import Backstay

URL = "sqlite:///backstay.db"


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """The values of `--url`, `--namespace` and `--shards`."""

    url: str
    namespace: str | None
    shards: int | None = None

    @contextmanager
    def existing(self) -> Generator[Backstay, None, None]:
        """Open a blocking Backstay for commands that inspect or change existing data. Raise ConfigError if the URL
        names a SQLite file that does not exist: opening it would create an empty database after a typo in the URL.
        """
        stay = self.blocking()
        path = _shared(stay.engine)
        if path is not None and not path.exists():
            raise ConfigError(f"{path} does not exist; name the engine with --url or BACKSTAY_URL")
        with stay:
            yield stay

    def blocking(self) -> Backstay:
        """Return a blocking Backstay that is not open yet. Opening it creates a missing SQLite file."""
        return Backstay(self.url, namespace=self.namespace, shards=self.shards)

    def create(self, *, private: bool = False) -> AsyncBackstay:
        """Return an async Backstay that is not open yet. Opening it creates a missing SQLite file. With `private`, no
        other process needs the data, so memory:// is allowed.
        """
        stay = AsyncBackstay(self.url, namespace=self.namespace, shards=self.shards)
        if not private:
            _shared(stay.engine)
        return stay


def _shared(engine: Engine) -> Path | None:
    """Return the path of the engine's SQLite file; None for other engines. Raise ConfigError for memory://, which
    exists only inside one process: a command would not see the data of any other process.
    """
    path = find_database_file(engine)
    if path is None:
        return None
    if path == ":memory:":
        raise ConfigError(f"memory:// is visible to one process only; use {URL} or redis://127.0.0.1:6379/0")
    return Path(path)


def connection(context: typer.Context) -> ConnectionOptions:
    """Return the connection that the root command has stored in the context."""
    found = context.obj
    if not isinstance(found, ConnectionOptions):
        raise TypeError("the root command has not run")
    return found
