"""Show the wait for a lock: the caller's position in the queue, and who has held the lock for how long."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING

from backstay import Backstay
from backstay.cli.durations import span
from backstay.cli.output import describe_caller, quote, warn
from backstay.cli.views.locks import held_for
from backstay.errors import EngineError
from backstay.gate.view import Inspection

if TYPE_CHECKING:
    from rich.status import Status

#: Seconds before the status line appears, so that none flashes when the lock is free.
FIRST_POLL = 0.25
#: Seconds between reads of the lock's state.
POLL_SECONDS = 1.0


def format_status(lock: Inspection, lock_id: str, now: float) -> str:
    """Return the status line: "waiting for 'x': position 2, held by … for 12s"."""
    position = next((w.position + 1 for w in lock.queue if w.lock_id == lock_id), None)
    parts = [f"position {position}"] if position else []
    if lock.holders:
        first = lock.holders[0]
        more = f" and {len(lock.holders) - 1} more" if len(lock.holders) > 1 else ""
        parts.append(f"held by {describe_caller(first)}{more} for {span(held_for(first, now))}")
    return f"waiting for {quote(lock.name)}" + (f": {', '.join(parts)}" if parts else "")


@contextlib.contextmanager
def show_wait(stay: Backstay, name: str, lock_id: str, *, verbose: bool) -> Generator[None, None, None]:
    """Show the wait while the block acquires the lock: a status line on a terminal; elsewhere, with `verbose`, one line
    per change of the holders or of the caller's position.

    This is no async context manager: an await on leaving the block could be cancelled, and the granted lock would
    never be released.
    """
    terminal = sys.stderr.isatty()
    if not (terminal or verbose):
        yield
        return
    status = _status() if terminal else None
    task = asyncio.get_running_loop().create_task(_watch(stay, name, lock_id, status))
    try:
        yield
    finally:
        task.cancel()
        if status is not None:
            status.stop()


def _status() -> Status:
    from rich.console import Console
    from rich.status import Status

    return Status("", console=Console(stderr=True, highlight=False))


async def _watch(stay: Backstay, name: str, lock_id: str, status: Status | None) -> None:
    from rich.markup import escape

    shown: object = None
    await asyncio.sleep(FIRST_POLL)
    while True:
        with contextlib.suppress(EngineError):  # the waiting acquire reports the error
            lock = await stay.locks.inspect(name)
            line = format_status(lock, lock_id, stay.engine.now() / 1_000_000)
            if status is not None:
                status.update(escape(line))
                status.start()
            else:
                change = [h.lock_id for h in lock.holders], [w.position for w in lock.queue if w.lock_id == lock_id]
                if change != shown:
                    shown = change
                    warn(line)
        await asyncio.sleep(POLL_SECONDS)
