"""Build the core of a Backstay: the object that holds its engine, hub, port and stores."""

from __future__ import annotations

from collections.abc import Callable

from backstay.assembly.backends import open_caller_store, open_hub, open_job_store
from backstay.assembly.engines import resolve_engine
from backstay.assembly.hubs import resolve_hub_engine
from backstay.assembly.settings import Settings
from backstay.engine.base import OperationRunner
from backstay.hub.base import Hub
from backstay.job.api.caller_connection import CALLER_STORE
from backstay.job.store import JOB_STORE
from backstay.runtime.core import Core, ProcessIdentity
from backstay.runtime.port import AsyncPort, BlockingPort
from backstay.telemetry import Telemetry


def build_core(settings: Settings, *, blocking: bool) -> Core:
    """Build the core, which every operation takes as its first argument. This does not connect to the engine; stores
    are opened at first use.
    """
    chosen = settings.engine
    if chosen is None:
        chosen = resolve_engine(settings.url, settings.namespace, blocking=blocking)
    telemetry = Telemetry()
    given = settings.hub
    runner: OperationRunner = chosen
    make: Callable[[ProcessIdentity], Hub]
    if isinstance(given, Hub):
        runner = given.runner or chosen
        make = lambda _: given  # noqa: E731 - the same hub for every identity
    else:
        hub_engine = chosen if given is None else resolve_hub_engine(given, chosen, blocking=blocking)
        runner = hub_engine
        make = lambda identity: open_hub(hub_engine, identity, telemetry, blocking=blocking)  # noqa: E731 - as above

    def make_port(runner: OperationRunner) -> AsyncPort | BlockingPort:
        return BlockingPort(runner, chosen.thread_subscribers) if blocking else AsyncPort(runner)

    core = Core(
        engine=chosen,
        hub=make,
        port=make_port(chosen),
        policy=settings.policy,
        telemetry=telemetry,
        hub_prefix=settings.hub_prefix,
        hub_port=None if runner is chosen else make_port(runner),
        owns_hub=not isinstance(given, Hub),
    )
    core.services.provide(JOB_STORE, lambda _: open_job_store(chosen, settings.hub_prefix, settings.shards))
    core.services.provide(CALLER_STORE, open_caller_store)
    return core
