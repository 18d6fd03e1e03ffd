"""`stay.transaction(conn)`: a block that is one transaction on the caller's connection. It commits at its end, rolls
back on an exception, and tells the workers once it is committed what was enqueued on the connection inside.

A block inside a transaction that was open already is a savepoint of it: whoever opened that one commits.
"""

from __future__ import annotations

import sqlite3
from importlib import import_module
from types import TracebackType
from typing import Any, Self, cast

from backstay.engine.sqlite import caller_transactions
from backstay.engine.sqlite.caller_transactions import plainly
from backstay.engine.sqlite.schema import translate
from backstay.errors import ConfigError
from backstay.job.api.after_commit import Hints, enter, leave, open_hints
from backstay.job.api.caller_connection import Callers, no_part, same_file
from backstay.runtime.core import Core
from backstay.runtime.flows import run
from backstay.runtime.maybe_await import settled


class Manner:
    """How a kind of connection begins and ends. `outermost`: its end is the transaction's."""

    outermost = True

    async def begin(self) -> None: ...

    async def end(self, error: BaseException | None) -> None: ...


class SqliteManner(Manner):
    """sqlite3: BEGIN IMMEDIATE, so that nothing that was read grows stale; or a savepoint."""

    def __init__(self, core: Core, driver: sqlite3.Connection) -> None:
        self._core = core
        self._driver = driver
        #: sqlite3 with autocommit=False has a transaction at all times: then ours is the one that ends with the block.
        self._keeps_one = getattr(driver, "autocommit", None) is False

    async def begin(self) -> None:
        driver = self._driver
        path = cast("Any", self._core.engine).path
        same_file(driver, path)
        self.outermost = not driver.in_transaction or (self._keeps_one and open_hints(self._core, driver) is None)
        try:
            if not self.outermost:
                driver.execute("SAVEPOINT backstay_block")
            elif not driver.in_transaction:
                driver.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise translate(error, path) from error
        caller_transactions.inside(driver, self._core.engine)

    async def end(self, error: BaseException | None) -> None:
        driver = self._driver
        before = plainly(driver)
        try:
            if self.outermost:
                caller_transactions.outside()
                if error is None:
                    try:
                        driver.commit()
                    except BaseException:
                        driver.rollback()
                        raise
                else:
                    driver.rollback()
            elif driver.in_transaction:  # else the caller has ended it inside the block
                if error is not None:
                    driver.execute("ROLLBACK TO backstay_block")
                driver.execute("RELEASE backstay_block")
        finally:
            driver.row_factory, driver.text_factory = before


class PsycopgManner(Manner):
    """psycopg, async or not: its own transaction blocks know of savepoints."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._block: Any = None

    async def begin(self) -> None:
        self.outermost = self._driver.info.transaction_status == 0  # IDLE
        block = self._driver.transaction()
        self._block = block
        await settled(block.__aenter__() if hasattr(block, "__aenter__") else block.__enter__())

    async def end(self, error: BaseException | None) -> None:
        block = self._block
        facts = (None, None, None) if error is None else (type(error), error, error.__traceback__)
        await settled(block.__aexit__(*facts) if hasattr(block, "__aexit__") else block.__exit__(*facts))


class AlchemyManner(Manner):
    """Connections and sessions of SQLAlchemy, async or not."""

    def __init__(self, given: Any) -> None:
        self._given = given
        self._block: Any = None

    async def begin(self) -> None:
        self.outermost = not self._given.in_transaction()
        block = self._given.begin() if self.outermost else self._given.begin_nested()
        self._block = await block if hasattr(block, "__await__") else block

    async def end(self, error: BaseException | None) -> None:
        await settled(self._block.commit() if error is None else self._block.rollback())


class DjangoManner(Manner):
    """Django's `atomic`; its on_commit tells the workers."""

    def __init__(self, given: Any) -> None:
        self._block: Any = import_module("django.db.transaction").atomic(using=given.alias)

    async def begin(self) -> None:
        self._block.__enter__()

    async def end(self, error: BaseException | None) -> None:
        facts = (None, None, None) if error is None else (type(error), error, error.__traceback__)
        self._block.__exit__(*facts)


def manner_of(callers_own: Callers, driver: Any) -> Manner:
    if callers_own.is_alchemy:
        return AlchemyManner(callers_own.given)
    if callers_own.is_django:
        return DjangoManner(callers_own.given)
    if isinstance(driver, sqlite3.Connection):
        return SqliteManner(callers_own.core, driver)
    return PsycopgManner(driver)


class BaseTransaction:
    """What both APIs share. Entered once."""

    def __init__(self, core: Core, connection: Any) -> None:
        self._core = core
        #: The caller's connection: pass it to `options(connection=…)`.
        self.connection = connection
        if core.engine.default_hub == "redis":
            raise no_part("stay.transaction(conn)")
        self._callers = Callers(core, connection)
        self._manner: Manner | None = None
        self._hints = Hints(core)
        #: Below whose connection hints are gathered here; sessions and Django tell by themselves when they commit.
        self._gathers: Any = None
        self._outer: Hints | None = None

    async def _open(self) -> None:
        if self._manner is not None:
            raise ConfigError("this block is entered already; make another with stay.transaction(conn)")
        own = self._callers
        plain = not own.is_alchemy and not own.is_django
        manner = self._manner = manner_of(own, own.given if plain else None)
        await manner.begin()
        if own.session is None and not own.is_django:
            self._gathers = await own.driver()
            self._outer = open_hints(self._core, self._gathers)
            enter(self._core, self._gathers, self._hints)

    async def _close(self, error: BaseException | None) -> None:
        manner = cast("Manner", self._manner)
        if self._gathers is not None:
            leave(self._core, self._gathers)
        await manner.end(error)
        if error is not None:
            return
        if manner.outermost:
            self._hints.send()
        elif self._outer is not None:
            self._outer.take(self._hints)


class AsyncTransaction(BaseTransaction):
    """`async with stay.transaction(conn): …`."""

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(error)


class Transaction(BaseTransaction):
    """`with stay.transaction(conn): …`."""

    def __enter__(self) -> Self:
        run(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(self._close(error))
