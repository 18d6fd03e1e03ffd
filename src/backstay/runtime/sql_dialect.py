"""How a caller's connection wants its SQL: quotes, placeholders, cursors. Nothing is imported for it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from backstay.errors import ConfigError
from backstay.runtime.maybe_await import settled

#: Plain names only. They are quoted besides, so that `order` and `user` work.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Parameters = Sequence[Any] | dict[str, Any]

#: Placeholders by PEP 249's names: how the n-th looks, and whether values go by name.
STYLES: dict[str, tuple[str, bool]] = {
    "qmark": ("?", False),
    "numeric": (":{}", False),
    "format": ("%s", False),
    "named": (":p{}", True),
    "pyformat": ("%(p{})s", True),
}


class Dialect:
    """A DB-API connection. `execute` opens a cursor on it and closes it again."""

    def __init__(self, connection: Any, style: str, quote: Callable[[str], str]) -> None:
        self.connection = connection
        self._mark, self._named = STYLES[style]
        self._quote = quote

    def name(self, given: str) -> str:
        """A column, quoted."""
        if not isinstance(cast("object", given), str) or not _NAME.fullmatch(given):
            raise ConfigError(f"{given!r} is not a plain SQL name; letters, digits and underscores, as in 'invoice'")
        return self._quote(given)

    def table(self, given: str) -> str:
        """A table, perhaps with its schema: `billing.invoice`."""
        return ".".join(self.name(part) for part in str(given).split("."))

    def mark(self, number: int) -> str:
        """The placeholder of the n-th value, counted from 1."""
        return self._mark.format(number)

    def parameters(self, values: Sequence[Any]) -> Parameters:
        return {f"p{i}": value for i, value in enumerate(values, 1)} if self._named else tuple(values)

    async def execute(self, text: str, values: Sequence[Any], *, wants_row: bool = False) -> tuple[int, Any]:
        """How many rows it changed; or the first column of the first row, None without one."""
        cursor = await settled(self.connection.cursor())
        try:
            if wants_row:
                _plain_rows(cursor)
            await settled(cursor.execute(text, self.parameters(values)))
            row = await settled(cursor.fetchone()) if wants_row else None
            return cursor.rowcount, row
        finally:
            await settled(cursor.close())


class AlchemyDialect(Dialect):
    """A Connection or Session of SQLAlchemy, async or not."""

    def __init__(self, connection: Any) -> None:
        bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
        super().__init__(connection, "named", bind.dialect.identifier_preparer.quote_identifier)

    async def execute(self, text: str, values: Sequence[Any], *, wants_row: bool = False) -> tuple[int, Any]:
        sqlalchemy = sys.modules["sqlalchemy"]  # who passes its connection has imported it
        result = await settled(self.connection.execute(sqlalchemy.text(text), self.parameters(values)))
        if wants_row:
            return 0, result.fetchone()
        return result.rowcount, None


def _plain_rows(cursor: Any) -> None:
    """Tuples, whatever the caller's row factory makes of its own rows."""
    packages = [kind.__module__.partition(".")[0] for kind in type(cursor).__mro__]
    if "psycopg" in packages:
        cursor.row_factory = sys.modules["psycopg.rows"].tuple_row
    elif "sqlite3" in packages:
        cursor.row_factory = None


def dialect_of(connection: Any) -> Dialect:
    """What a connection is, told by its looks."""
    packages = [kind.__module__.partition(".")[0] for kind in type(connection).__mro__]
    if "sqlalchemy" in packages:
        return AlchemyDialect(connection)
    if hasattr(connection, "vendor") and hasattr(connection, "ops"):  # Django, directly or through its proxy
        return Dialect(connection, "format", connection.ops.quote_name)
    for package in packages:
        style = getattr(sys.modules.get(package), "paramstyle", None)
        if style in STYLES:
            return Dialect(connection, cast("str", style), '"{}"'.format)
    raise ConfigError(
        f"{type(connection).__module__}.{type(connection).__qualname__} is not a connection that is known here; pass"
        " one of sqlite3, psycopg, Django or SQLAlchemy"
    )


def first_column(row: Any) -> Any:
    """Rows are tuples, or whatever the caller's row factory makes."""
    return next(iter(cast("Mapping[str, Any]", row).values())) if isinstance(row, Mapping) else row[0]
