"""Which engine and namespace a command talks to: the global options, resolved once."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer

from backstay import Backstay as AsyncBackstay
from backstay.engine.base import Engine
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.errors import ConfigError
from backstay.sync import Backstay

URL = "sqlite:///backstay.db"


@dataclass(frozen=True, slots=True)
class Connection:
    """What `--url`, `--namespace` and `--shards` said."""

    url: str
    namespace: str | None
    shards: int | None = None

    @contextmanager
    def existing(self) -> Generator[Backstay, None, None]:
        """For looking and mending: a SQLite file must be there already, a typing error must not create one."""
        stay = self.blocking()
        path = _shared(stay.engine)
        if path is not None and not path.exists():
            raise ConfigError(f"{path} does not exist; name the engine with --url or BACKSTAY_URL")
        with stay:
            yield stay

    def blocking(self) -> Backstay:
        """Whether anything is there already or not. Not opened yet."""
        return Backstay(self.url, namespace=self.namespace, shards=self.shards)

    def create(self) -> AsyncBackstay:
        """For taking locks. Not opened yet; a SQLite file is created when it is missing."""
        stay = AsyncBackstay(self.url, namespace=self.namespace, shards=self.shards)
        _shared(stay.engine)
        return stay


def _shared(engine: Engine) -> Path | None:
    """The file behind the engine, if it is one. What lives in one process only is refused."""
    if not isinstance(engine, SqliteEngine):
        return None
    if engine.path == ":memory:":
        raise ConfigError(f"memory:// is seen by one process only; use {URL} or redis://127.0.0.1:6379/0")
    return Path(engine.path)


def connection(context: typer.Context) -> Connection:
    """The connection of the command under way."""
    found = context.obj
    if not isinstance(found, Connection):
        raise TypeError("the root command has not run")
    return found
