"""`examine(url)`: look at an engine and say what is wrong with it. Blocking; changes nothing that stays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from backstay.app import open_engine
from backstay.assembly.base import Settings
from backstay.doctor.finding import Finding, Report
from backstay.errors import ConfigError

#: Seconds since the epoch as this host sees them.
Clock = Callable[[], float]
#: What looks at each engine: `diagnose(engine, clock)` yields findings, `where(engine)` says where it is.
DOCTORS = {
    "ClusterEngine": "backstay.doctor.redis_cluster",
    "PostgresEngine": "backstay.doctor.postgres",
    "RedisEngine": "backstay.doctor.redis",
    "SentinelEngine": "backstay.doctor.redis_sentinel",
    "SqliteEngine": "backstay.doctor.sqlite",
}


def examine(url: str | None = None, *, namespace: str | None = None, clock: Clock = time.time) -> Report:
    """Look at the engine that a URL names. What cannot be reached is a finding, a URL that cannot be read an error.

    clock: this host's. Skew is a difference, so a test that shifts this one has shifted the server's.
    """
    settings = Settings(url, namespace, None)
    engine = open_engine(str(settings.url), settings.namespace)
    home = next((DOCTORS[kind.__name__] for kind in type(engine).__mro__ if kind.__name__ in DOCTORS), None)
    if home is None:
        raise ConfigError(f"nobody knows how to examine a {type(engine).__name__}")
    doctor = import_module(home)
    diagnose: Callable[[Any, Clock], Iterator[Finding]] = doctor.diagnose
    try:
        return Report(doctor.where(engine), tuple(diagnose(engine, clock)))
    finally:
        engine.close_blocking()
