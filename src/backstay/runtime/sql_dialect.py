"""Execute SQL on a caller's own connection: quoting, placeholders and cursors of each driver. Imports no driver."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from backstay.errors import ConfigError
from backstay.runtime.flows import maybe_await

#: Only plain identifiers are allowed. They are also quoted, so reserved words such as `order` and `user` work.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Parameters = Sequence[Any] | dict[str, Any]

#: How each `paramstyle` of PEP 249 writes the placeholder of the n-th value, and whether the values are passed by name.
STYLES: dict[str, tuple[str, bool]] = {
    "qmark": ("?", False),
    "numeric": (":{}", False),
    "format": ("%s", False),
    "named": (":p{}", True),
    "pyformat": ("%(p{})s", True),
}


class Dialect:
    """A caller's DB-API connection, with the quoting and the placeholders of its driver. `execute` opens a cursor and
    closes it; it never commits.
    """

    def __init__(self, connection: Any, style: str, quote: Callable[[str], str]) -> None:
        self.connection = connection
        self._mark, self._named = STYLES[style]
        self._quote = quote

    def name(self, given: str) -> str:
        """Return a column's name, quoted."""
        if not isinstance(cast("object", given), str) or not _NAME.fullmatch(given):
            raise ConfigError(f"{given!r} is not a plain SQL name; letters, digits and underscores, as in 'invoice'")
        return self._quote(given)

    def table(self, given: str) -> str:
        """Return a table's name, quoted, with its schema if it has one: `billing.invoice`."""
        return ".".join(self.name(part) for part in str(given).split("."))

    def mark(self, number: int) -> str:
        """Return the placeholder of the n-th value of a statement, counted from 1: `?`, `%s` or `:p1`, as the driver
        wants.
        """
        return self._mark.format(number)

    def parameters(self, values: Sequence[Any]) -> Parameters:
        return {f"p{i}": value for i, value in enumerate(values, 1)} if self._named else tuple(values)

    async def execute(self, text: str, values: Sequence[Any], *, wants_row: bool = False) -> tuple[int, Any]:
        """Execute a statement. Returns the number of changed rows, and the first row if `wants_row`."""
        cursor = await maybe_await(self.connection.cursor())
        try:
            if wants_row:
                _use_tuple_rows(cursor)
            await maybe_await(cursor.execute(text, self.parameters(values)))
            row = await maybe_await(cursor.fetchone()) if wants_row else None
            return cursor.rowcount, row
        finally:
            await maybe_await(cursor.close())


class AlchemyDialect(Dialect):
    """A Connection or Session of SQLAlchemy, async or blocking."""

    def __init__(self, connection: Any) -> None:
        bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
        super().__init__(connection, "named", bind.dialect.identifier_preparer.quote_identifier)

    async def execute(self, text: str, values: Sequence[Any], *, wants_row: bool = False) -> tuple[int, Any]:
        sqlalchemy = sys.modules["sqlalchemy"]  # a caller that has a SQLAlchemy connection has imported it
        result = await maybe_await(self.connection.execute(sqlalchemy.text(text), self.parameters(values)))
        if wants_row:
            return 0, result.fetchone()
        return result.rowcount, None


def _use_tuple_rows(cursor: Any) -> None:
    """Make the cursor return tuples, whatever row factory the caller's connection has."""
    packages = [kind.__module__.partition(".")[0] for kind in type(cursor).__mro__]
    if "psycopg" in packages:
        cursor.row_factory = sys.modules["psycopg.rows"].tuple_row
    elif "sqlite3" in packages:
        cursor.row_factory = None


def detect_dialect(connection: Any) -> Dialect:
    """Return the dialect of a connection, from the modules and attributes of its class. Raises ConfigError."""
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
        f"{type(connection).__module__}.{type(connection).__qualname__} is not a supported connection; pass one of"
        " sqlite3, psycopg, Django or SQLAlchemy"
    )


def first_column(row: Any) -> Any:
    """Return the first column of a row: a tuple, or a mapping that the caller's row factory made."""
    return next(iter(cast("Mapping[str, Any]", row).values())) if isinstance(row, Mapping) else row[0]
