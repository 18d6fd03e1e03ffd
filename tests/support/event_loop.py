"""Decorators for async tests: each test runs on a new event loop, and fails if tasks are left at its end."""

from __future__ import annotations

import asyncio
import functools

from backstay.job.worker.blocking import new_loop


def on_a_loop(test):
    """Run an async test with `asyncio.run`. Tasks that are still running afterwards fail it."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        async def whole():
            await test(*args, **kwargs)
            for _ in range(20):  # closing tasks need a few iterations of the loop
                left = asyncio.all_tasks() - {asyncio.current_task()}
                if not left:
                    return
                await asyncio.sleep(0.01)
            raise AssertionError(f"left behind: {left}")

        asyncio.run(whole())

    return run


def awaited(test):
    """Like `on_a_loop`, on the kind of event loop that workers use."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        async def whole():
            await test(*args, **kwargs)
            for _ in range(20):  # closing tasks need a few iterations of the loop
                left = asyncio.all_tasks() - {asyncio.current_task()}
                if not left:
                    return
                await asyncio.sleep(0.01)
            raise AssertionError(f"left behind: {left}")

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(whole())

    return run
