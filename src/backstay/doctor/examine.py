"""`examine(url)`: check an engine and report problems. Blocking; leaves no data behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from backstay.assembly.engines import open_engine
from backstay.assembly.settings import Settings
from backstay.doctor.finding import Finding, Report
from backstay.errors import ConfigError

#: Returns this host's time in seconds since the epoch.
Clock = Callable[[], float]
#: The module that checks each engine: `diagnose(engine, clock)` yields findings, `where(engine)` returns its address.
DOCTORS = {
    "ClusterEngine": "backstay.doctor.redis_cluster",
    "PostgresEngine": "backstay.doctor.postgres",
    "RedisEngine": "backstay.doctor.redis",
    "SentinelEngine": "backstay.doctor.redis_sentinel",
    "SqliteEngine": "backstay.doctor.sqlite",
}


def examine(url: str | None = None, *, namespace: str | None = None, clock: Clock = time.time) -> Report:
    """Check the engine of a URL. An unreachable engine is a finding; an invalid URL raises ConfigError.

    clock: Returns this host's time. Tests pass a shifted clock to simulate a server whose clock is wrong.
    """
    settings = Settings(url, namespace, None)
    engine = open_engine(str(settings.url), settings.namespace)
    module = next((DOCTORS[kind.__name__] for kind in type(engine).__mro__ if kind.__name__ in DOCTORS), None)
    if module is None:
        raise ConfigError(f"there are no checks for the engine {type(engine).__name__}")
    doctor = import_module(module)
    diagnose: Callable[[Any, Clock], Iterator[Finding]] = doctor.diagnose
    try:
        return Report(doctor.where(engine), tuple(diagnose(engine, clock)))
    finally:
        engine.close_blocking()
