"""Helpers to run a Backstay with a worker in this process, and to read the stored jobs."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from backstay import Backstay
from backstay.job.store import JOB_STORE
from backstay.testing.waiting import WITHIN, soon

REDIS = pytest.param("redis", marks=pytest.mark.redis)
POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)
#: A Redis with jobs in four shards.
SHARDS = pytest.param("shards", marks=pytest.mark.redis)
#: Every job store.
KINDS = ["memory", "sqlite", REDIS, SHARDS, POSTGRES]

#: The job stores without shards. In these, a rate and a unique key apply to all jobs, the jobs of a chain may have any
#: concurrency or unique key, and a batch is stored in one transaction.
UNSHARDED = [kind for kind in KINDS if kind is not SHARDS]


def url_of(kind, request):
    if kind == "memory":
        return "memory://"
    if kind == "sqlite":
        return f"sqlite:///{request.getfixturevalue('tmp_path') / 'jobs.db'}?synchronous=normal"
    if kind == "shards":
        request.getfixturevalue("monkeypatch").setenv("BACKSTAY_SHARDS", "4")
        kind = "redis"
    return request.getfixturevalue(f"backstay_{kind}").url


async def fetch_job(stay, handle):
    """Return the job as it is stored."""
    core = stay._core
    return await core.port.apply(core.services.get(JOB_STORE).get(getattr(handle, "id", handle)))


async def wait_for_state(stay, handle, state, within=10.0):
    """Wait until the job has this state, and return the job."""

    async def is_reached():
        return (await fetch_job(stay, handle)).state == state

    assert await soon(is_reached, within), await fetch_job(stay, handle)
    return await fetch_job(stay, handle)


async def wait_until(condition, within=WITHIN):
    """Wait until `condition()` returns a true value, and fail the test otherwise."""

    async def is_true():
        return condition()

    assert await soon(is_true, within)


@contextlib.asynccontextmanager
async def working(stay, **options):
    """Run a worker during the block, and stop it at the end."""
    options = {"signals": False, "concurrency": 10, "drain": 5, "grace": 1} | options
    worker = stay.worker(**options)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(task, 30)


def open_app(url, namespace, **options):
    return Backstay(url, namespace=namespace, **options)
