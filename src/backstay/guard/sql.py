"""Guarded rows: one conditional statement on the caller's own connection, inside the caller's transaction.

The table has a BIGINT column for the fence, which may be NULL; the statement that writes the row compares the fence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from backstay.errors import ConfigError, RowMissing
from backstay.runtime.flows import run
from backstay.runtime.sql_dialect import detect_dialect, first_column

if TYPE_CHECKING:
    from backstay.guard.base import Guard

Columns = Mapping[str, Any]


class BaseSqlGuard:
    """What the blocking and the async SQL guard share. A guard neither commits nor rolls back: the caller does."""

    __slots__ = ("_dialect", "_fence", "_guard")

    def __init__(self, guard: Guard, connection: Any, fence_column: str) -> None:
        self._guard = guard
        self._dialect = detect_dialect(connection)
        self._fence = fence_column

    async def _update(self, table: str, values: Columns, where: Columns) -> None:
        sql = self._dialect
        self._check(values, where, "where")
        target, fence = sql.table(table), sql.name(self._fence)
        given = [*values.values(), self._guard.fence, *where.values(), self._guard.fence]
        marks = [sql.mark(i) for i in range(1, len(given) + 1)]
        sets = ", ".join(
            f"{sql.name(c)} = {m}" for c, m in zip((*values, self._fence), marks[: len(values) + 1], strict=True)
        )
        row = " AND ".join(f"{sql.name(c)} = {m}" for c, m in zip(where, marks[len(values) + 1 : -1], strict=True))
        text = f"UPDATE {target} SET {sets} WHERE {row} AND ({fence} IS NULL OR {fence} <= {marks[-1]})"  # noqa: S608 - names are checked and quoted
        await self._write(text, given, table, where)

    async def _upsert(self, table: str, values: Columns, key: Columns) -> None:
        sql = self._dialect
        self._check(values, key, "key")
        target, fence = sql.table(table), sql.name(self._fence)
        changing = [sql.name(c) for c in (*values, self._fence)]
        columns = [*(sql.name(c) for c in key), *changing]
        given = [*key.values(), *values.values(), self._guard.fence]
        text = (
            f"INSERT INTO {target} AS guarded ({', '.join(columns)})"  # noqa: S608 - names are checked and quoted
            f" VALUES ({', '.join(sql.mark(i) for i in range(1, len(given) + 1))})"
            f" ON CONFLICT ({', '.join(columns[: len(key)])})"
            f" DO UPDATE SET {', '.join(f'{c} = excluded.{c}' for c in changing)}"
            f" WHERE guarded.{fence} IS NULL OR guarded.{fence} <= excluded.{fence}"
        )
        await self._write(text, given, table, key)

    def _check(self, values: Columns, row: Columns, what: str) -> None:
        if not row or any(value is None for value in row.values()):
            raise ConfigError(f"{what} names one row by its key, without None, as in {what}={{'id': 42}}; got {row!r}")
        if self._fence in values or self._fence in row:
            raise ConfigError(
                f"the guard writes the column {self._fence!r} itself; leave it out, or pass fence_column="
            )
        if both := sorted(set(values) & set(row)):
            raise ConfigError(f"{', '.join(both)}: a column cannot be both written and part of the key")
        self._guard.check()

    async def _write(self, text: str, given: list[Any], table: str, row: Columns) -> None:
        changed, _ = await self._dialect.execute(text, given)
        if changed > 1:
            raise ConfigError(f"{dict(row)!r} matched {changed} rows of {table}; name one row, and roll this back")
        if changed < 1:
            await self._explain(table, row)

    async def _explain(self, table: str, row: Columns) -> None:
        """Find out why no row was written: raise StaleFence if the row has a newer fence, RowMissing if there is no
        row.
        """
        sql = self._dialect
        match = " AND ".join(f"{sql.name(c)} = {sql.mark(i)}" for i, c in enumerate(row, 1))
        text = f"SELECT {sql.name(self._fence)} FROM {sql.table(table)} WHERE {match}"  # noqa: S608 - names are checked and quoted
        _, found = await sql.execute(text, list(row.values()), wants_row=True)
        if found is not None:
            stored = first_column(found)
            self._guard.admit(None if stored is None else int(stored))
        raise RowMissing(name=self._guard.name, table=table, row=dict(row))


class SqlGuard(BaseSqlGuard):
    """Fenced SQL writes, blocking: over sqlite3, psycopg, Django or SQLAlchemy."""

    __slots__ = ()

    def update(self, table: str, values: Columns, *, where: Columns) -> None:
        """Update one row. Raises StaleFence if a later holder has written it, RowMissing if no row matches. Empty
        `values` update only the fence.
        """
        run(self._update(table, values, where))

    def upsert(self, table: str, values: Columns, *, key: Columns) -> None:
        """Insert or update one row. Raises StaleFence if a later holder has written it. `key` is its primary key or
        another unique key.
        """
        run(self._upsert(table, values, key))


class AsyncSqlGuard(BaseSqlGuard):
    """Fenced SQL writes, async: over psycopg's AsyncConnection or SQLAlchemy's AsyncConnection and AsyncSession."""

    __slots__ = ()

    async def update(self, table: str, values: Columns, *, where: Columns) -> None:
        """Update one row. Raises StaleFence if a later holder has written it, RowMissing if no row matches. Empty
        `values` update only the fence.
        """
        await self._update(table, values, where)

    async def upsert(self, table: str, values: Columns, *, key: Columns) -> None:
        """Insert or update one row. Raises StaleFence if a later holder has written it. `key` is its primary key or
        another unique key.
        """
        await self._upsert(table, values, key)
