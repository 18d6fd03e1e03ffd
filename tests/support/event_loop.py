"""Decorators for async tests: each test runs on a new event loop, and fails if tasks are left at its end."""

from __future__ import annotations

import asyncio
import functools

from backstay.job.worker.blocking import new_loop


def on_a_loop(test):
    """Run an async test with `asyncio.run`."""
    return _run_with(test, None)


def on_a_worker_loop(test):
    """Like `on_a_loop`, on the kind of event loop that workers use."""
    return _run_with(test, new_loop)


def _run_with(test, loop_factory):
    @functools.wraps(test)
    def run(*args, **kwargs):
        async def run_and_check():
            await test(*args, **kwargs)
            for _ in range(20):  # tasks that are being closed need a few iterations of the loop
                left = asyncio.all_tasks() - {asyncio.current_task()}
                if not left:
                    return
                await asyncio.sleep(0.01)
            raise AssertionError(f"tasks are still running: {left}")

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(run_and_check())

    return run
