"""What is to be done for jobs before a Holdfast closes."""

from __future__ import annotations

from typing import cast

from holdfast.core import Core
from holdfast.job.announcer import Announcer
from holdfast.job.waiters import Waiters


async def close(core: Core) -> None:
    """What has been announced leaves; nobody listens for ends any more. Safe twice."""
    announcer = core.notes.get("job.announcer")
    if announcer is not None:
        await cast("Announcer", announcer).flush()
    for waiters in core.notes.values():
        if isinstance(waiters, Waiters):
            waiters.close()
