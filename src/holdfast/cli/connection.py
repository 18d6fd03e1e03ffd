"""Which engine and namespace a command talks to: the global options, resolved once."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer

from holdfast import Holdfast as AsyncHoldfast
from holdfast.engine.base import Engine
from holdfast.engine.sqlite import SqliteEngine
from holdfast.errors import ConfigError
from holdfast.sync import Holdfast

URL = "sqlite:///holdfast.db"


@dataclass(frozen=True, slots=True)
class Connection:
    """What `--url`, `--namespace` and `--shards` said."""

    url: str
    namespace: str | None
    shards: int | None = None

    @contextmanager
    def existing(self) -> Generator[Holdfast, None, None]:
        """For looking and mending: a SQLite file must be there already, a typing error must not create one."""
        hf = self.blocking()
        path = _shared(hf.engine)
        if path is not None and not path.exists():
            raise ConfigError(f"{path} does not exist; name the engine with --url or HOLDFAST_URL")
        with hf:
            yield hf

    def blocking(self) -> Holdfast:
        """Whether anything is there already or not. Not opened yet."""
        return Holdfast(self.url, namespace=self.namespace, shards=self.shards)

    def create(self) -> AsyncHoldfast:
        """For taking locks. Not opened yet; a SQLite file is created when it is missing."""
        hf = AsyncHoldfast(self.url, namespace=self.namespace, shards=self.shards)
        _shared(hf.engine)
        return hf


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
