"""The engine and namespace that a command connects to: the global options, resolved once."""

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
class Connection:
    """The values of `--url`, `--namespace` and `--shards`."""

    url: str
    namespace: str | None
    shards: int | None = None

    @contextmanager
    def existing(self) -> Generator[Backstay, None, None]:
        """Open for inspection and repair. A SQLite file must exist already, so that a typo does not create one."""
        stay = self.blocking()
        path = _shared(stay.engine)
        if path is not None and not path.exists():
            raise ConfigError(f"{path} does not exist; name the engine with --url or BACKSTAY_URL")
        with stay:
            yield stay

    def blocking(self) -> Backstay:
        """A blocking Backstay that is not opened yet; a missing SQLite file is created when it opens."""
        return Backstay(self.url, namespace=self.namespace, shards=self.shards)

    def create(self) -> AsyncBackstay:
        """An async Backstay for taking locks. It is not opened yet; opening creates a missing SQLite file."""
        stay = AsyncBackstay(self.url, namespace=self.namespace, shards=self.shards)
        _shared(stay.engine)
        return stay


def _shared(engine: Engine) -> Path | None:
    """The engine's SQLite file, if it has one. Rejects memory://, which other processes cannot see."""
    path = find_database_file(engine)
    if path is None:
        return None
    if path == ":memory:":
        raise ConfigError(f"memory:// is visible to one process only; use {URL} or redis://127.0.0.1:6379/0")
    return Path(path)


def connection(context: typer.Context) -> Connection:
    """The connection of the running command."""
    found = context.obj
    if not isinstance(found, Connection):
        raise TypeError("the root command has not run")
    return found
