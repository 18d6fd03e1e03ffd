"""A fork between two announcements: the child announces its own jobs, and repeats no announcement of its parent."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter

import pytest

from backstay import Backstay
from backstay.testing.waiting import soon

pytestmark = [pytest.mark.chaos, pytest.mark.race]

FORKS = 5
#: The jobs that the parent enqueues before each fork.
JOBS = 3

BLOCKING = """
import os, sys
from backstay.sync import Backstay

url, namespace, forks, jobs = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
stay = Backstay(url, namespace=namespace)

@stay.job()
def parent(): ...

@stay.job()
def child(): ...

for _ in range(forks):
    for _ in range(jobs):
        parent.enqueue()
    parent.options(delay=0.001).enqueue()  # announced asynchronously, by a thread that a child does not have
    forked = os.fork()
    if forked == 0:
        status = 1
        try:
            child.enqueue()
            child.enqueue_many([()] * 2)
            stay.close()
            status = 0
        finally:
            os._exit(status)
    parent.enqueue()
    assert os.waitpid(forked, 0)[1] == 0
stay.close()
"""


@pytest.mark.parametrize("turn", range(2))
def test_a_fork_between_two_announcements_doubles_none_and_loses_none(shared_url, namespace, turn):
    async def main():
        announced = Counter()
        async with Backstay(shared_url, namespace=namespace) as stay:
            await stay.jobs.list()

            async def listen():
                async with stay.hub.listen_scheduled(["parent", "child"]) as notices:
                    ready.set()
                    async for notice in notices:
                        if notice.hint_id:
                            announced[notice.type] += await stay.hub.take_hint(notice.hint_id, 1000)

            ready = asyncio.Event()
            listening = asyncio.create_task(listen())
            await ready.wait()
            arguments = [shared_url, namespace, str(FORKS), str(JOBS)]
            program = await asyncio.create_subprocess_exec(
                sys.executable, "-W", "error", "-c", BLOCKING, *arguments, stderr=subprocess.PIPE
            )
            _, errors = await asyncio.wait_for(program.communicate(), 100)
            assert program.returncode == 0, errors.decode()
            expected = {"parent": FORKS * (JOBS + 2), "child": FORKS * 3}

            async def all_announced():
                return announced == expected

            assert await soon(all_announced, 10), (announced, expected)
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    asyncio.run(main())
