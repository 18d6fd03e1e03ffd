"""`stay.internals`: the parts below the public API, for the server, the command line and the test helpers."""

from __future__ import annotations

from typing import Any, TypeVar

from backstay.engine.base import Engine, Op
from backstay.hub.base import Hub
from backstay.job.api.definition import BaseJobType
from backstay.job.api.registry import JOB_TYPES
from backstay.job.flows import send
from backstay.job.store import JOB_STORE, Store
from backstay.runtime.core import Core, ProcessIdentity
from backstay.runtime.lease_keeper import Keeper
from backstay.telemetry import Telemetry

T = TypeVar("T")


class Internals:
    """The internal parts of one Backstay. Not part of the public API: may change without notice."""

    __slots__ = ("core",)

    def __init__(self, core: Core) -> None:
        #: The first argument of every operation: `await flows.cancel(stay.internals.core, run_id, reason)`.
        self.core = core

    @property
    def engine(self) -> Engine:
        return self.core.engine

    @property
    def hub(self) -> Hub:
        """The hub object that `stay.hub` uses."""
        return self.core.hub

    @property
    def identity(self) -> ProcessIdentity:
        return self.core.identity

    @property
    def keeper(self) -> Keeper:
        return self.core.keeper

    @property
    def telemetry(self) -> Telemetry:
        return self.core.telemetry

    @property
    def job_store(self) -> Store:
        """The job store. Its methods only build operations and return them; pass one to `send` to run it."""
        return self.core.services.get(JOB_STORE)

    @property
    def job_types(self) -> dict[str, BaseJobType[..., Any]]:
        """The job types that this process defines, by name."""
        return self.core.services.get(JOB_TYPES)

    async def send(self, op: Op[T]) -> T:
        """Run an operation that may safely be sent twice: `internals.send(internals.job_store.queues())`."""
        return await send(self.core, op)
