"""Tests that await: each gets an event loop of its own, and leaves no task behind."""

from __future__ import annotations

import asyncio
import functools

from backstay.job.worker.blocking import new_loop


def on_a_loop(test):
    """Run an async test to its end; stray tasks fail it."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        async def whole():
            await test(*args, **kwargs)
            for _ in range(20):  # goodbyes take a turn or two
                left = asyncio.all_tasks() - {asyncio.current_task()}
                if not left:
                    return
                await asyncio.sleep(0.01)
            raise AssertionError(f"left behind: {left}")

        asyncio.run(whole())

    return run


def awaited(test):
    """The same on the event loop that workers use."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        async def whole():
            await test(*args, **kwargs)
            for _ in range(20):  # goodbyes take a turn or two
                left = asyncio.all_tasks() - {asyncio.current_task()}
                if not left:
                    return
                await asyncio.sleep(0.01)
            raise AssertionError(f"left behind: {left}")

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(whole())

    return run
