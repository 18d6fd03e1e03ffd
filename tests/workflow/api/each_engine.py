"""Run an async test of workflows on each engine."""

import asyncio
from uuid import uuid4

import pytest

from backstay import Backstay

ENGINES = [
    "sqlite",
    pytest.param("redis", marks=pytest.mark.redis),
    pytest.param("postgres", marks=pytest.mark.postgres),
]


def on_each_engine(test):
    """Run an async test with a Backstay on each engine."""

    @pytest.mark.parametrize("engine", ENGINES)
    def run(engine, tmp_path, request):
        url = f"sqlite:///{tmp_path / 'flow.db'}?synchronous=normal"
        if engine != "sqlite":
            url = request.getfixturevalue(f"backstay_{engine}").url

        async def run_test():
            async with Backstay(url, namespace=f"flow-{uuid4().hex}") as stay:
                await asyncio.wait_for(test(stay), 60)

        asyncio.run(run_test())

    run.__name__ = test.__name__
    return run
