"""Parameters of the conformance suites: every engine, in one process and in three."""

from __future__ import annotations

import pytest

REDIS, POSTGRES = pytest.mark.redis, pytest.mark.postgres
MARKS = {"redis": REDIS, "postgres": POSTGRES}


def every_engine(asynchronous, blocking, processes):
    """Return parameters (engine, API) for each engine. The arguments are the values that stand for each API; the engine
    in memory has no variant with several processes.
    """
    apis = {"async": asynchronous, "blocking": blocking, "processes": processes}
    return [
        pytest.param((engine, value), id=f"{engine}-{api}", marks=MARKS.get(engine, ()))
        for engine in ("memory", "sqlite", "redis", "postgres")
        for api, value in apis.items()
        if (engine, api) != ("memory", "processes")
    ]


def engine_url(engine, request):
    """Return the URL of an engine, for a fixture of module scope."""
    if engine == "memory":
        return "memory://"
    if engine == "sqlite":
        folder = request.getfixturevalue("tmp_path_factory").mktemp("conformance")
        return f"sqlite:///{folder / 'conformance.db'}?synchronous=normal"
    return request.getfixturevalue(f"backstay_{engine}").url
