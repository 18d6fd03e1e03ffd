"""`stay.transaction(conn)`: a block that is one transaction on the caller's connection. It commits at its end or rolls
back on an exception, and announces the jobs enqueued inside to workers after the commit.

Inside a transaction that is already open, the block is a savepoint; the outer transaction commits.
"""

from __future__ import annotations

from importlib import import_module
from types import TracebackType
from typing import Any, Self, cast

from backstay.errors import ConfigError
from backstay.job.api.after_commit import PendingAnnouncements, find_block_announcements, pop_block, push_block
from backstay.job.api.caller_connection import (
    CALLER_STORE,
    CallerConnection,
    CallerStore,
    TransactionControl,
    unsupported_connection_error,
)
from backstay.runtime.core import Core
from backstay.runtime.flows import maybe_await, run


class PsycopgControl(TransactionControl):
    """Begins and ends a transaction block on a psycopg connection, async or not. It uses psycopg's own transaction
    blocks, which are savepoints inside an open transaction.
    """

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._block: Any = None

    async def begin(self) -> None:
        self.outermost = self._driver.info.transaction_status == 0  # IDLE
        block = self._driver.transaction()
        self._block = block
        await maybe_await(block.__aenter__() if hasattr(block, "__aenter__") else block.__enter__())

    async def end(self, error: BaseException | None) -> None:
        block = self._block
        exc_info = (None, None, None) if error is None else (type(error), error, error.__traceback__)
        await maybe_await(block.__aexit__(*exc_info) if hasattr(block, "__aexit__") else block.__exit__(*exc_info))


class SqlAlchemyControl(TransactionControl):
    """Begins and ends a transaction block on a SQLAlchemy connection or session, async or not."""

    def __init__(self, given: Any) -> None:
        self._given = given
        self._block: Any = None

    async def begin(self) -> None:
        self.outermost = not self._given.in_transaction()
        block = self._given.begin() if self.outermost else self._given.begin_nested()
        self._block = await block if hasattr(block, "__await__") else block

    async def end(self, error: BaseException | None) -> None:
        await maybe_await(self._block.commit() if error is None else self._block.rollback())


class DjangoControl(TransactionControl):
    """Begins and ends a transaction block on a Django connection with `atomic`. Django's `on_commit` announces the
    enqueued jobs to workers.
    """

    def __init__(self, given: Any) -> None:
        self._block: Any = import_module("django.db.transaction").atomic(using=given.alias)

    async def begin(self) -> None:
        self._block.__enter__()

    async def end(self, error: BaseException | None) -> None:
        exc_info = (None, None, None) if error is None else (type(error), error, error.__traceback__)
        self._block.__exit__(*exc_info)


def choose_control(store: CallerStore, caller: CallerConnection, driver: Any) -> TransactionControl:
    if caller.is_sqlalchemy:
        return SqlAlchemyControl(caller.given)
    if caller.is_django:
        return DjangoControl(caller.given)
    return store.control(driver) or PsycopgControl(driver)


class BaseTransactionBlock:
    """The part of a transaction block that the async and the blocking API share. A block can be entered only once."""

    def __init__(self, core: Core, connection: Any) -> None:
        self._core = core
        #: The caller's connection: pass it to `options(connection=…)`.
        self.connection = connection
        store = core.services.get(CALLER_STORE)
        if store is None:
            raise unsupported_connection_error("stay.transaction(conn)")
        self._store = store
        self._caller = CallerConnection(core, connection)
        self._control: TransactionControl | None = None
        self._pending = PendingAnnouncements(core)
        #: The driver connection of this block, which collects its announcements and sends them after the commit. None
        #: for SQLAlchemy sessions and Django: their own commit events send the announcements.
        self._driver: Any = None
        self._outer: PendingAnnouncements | None = None

    async def _open(self) -> None:
        if self._control is not None:
            raise ConfigError("this block was already entered; create another with stay.transaction(conn)")
        caller = self._caller
        plain = not caller.is_sqlalchemy and not caller.is_django
        control = self._control = choose_control(self._store, caller, caller.given if plain else None)
        await control.begin()
        if caller.session is None and not caller.is_django:
            self._driver = await caller.driver()
            self._outer = find_block_announcements(self._core, self._driver)
            push_block(self._core, self._driver, self._pending)

    async def _close(self, error: BaseException | None) -> None:
        control = cast("TransactionControl", self._control)
        if self._driver is not None:
            pop_block(self._core, self._driver)
        await control.end(error)
        if error is not None:
            return
        if control.outermost:
            self._pending.send()
        elif self._outer is not None:
            self._outer.merge(self._pending)


class TransactionBlock(BaseTransactionBlock):
    """The transaction block of the async API: `async with stay.transaction(conn): …`."""

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(error)


class BlockingTransactionBlock(BaseTransactionBlock):
    """The transaction block of the blocking API: `with stay.transaction(conn): …`."""

    def __enter__(self) -> Self:
        run(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(self._close(error))
