"""What is to be done for jobs before a Backstay closes."""

from __future__ import annotations

from typing import cast

from backstay.job.api.announcer import Announcer
from backstay.job.api.completion_waiters import Waiters
from backstay.runtime.core import Core


async def close(core: Core) -> None:
    """What has been announced leaves; nobody listens for ends any more. Safe twice."""
    announcer = core.notes.get("job.announcer")
    if announcer is not None:
        await cast("Announcer", announcer).flush()
    for waiters in core.notes.values():
        if isinstance(waiters, Waiters):
            waiters.close()
