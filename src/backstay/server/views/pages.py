"""Bounds the size of lists: of what the server reads from the store at once, and of the response."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from msgspec.structs import replace

from backstay.job.flows import send
from backstay.job.model import Job
from backstay.job.store import Store
from backstay.runtime.core import Core

#: Limit of the bytes of a list in a response. A list that would have more ends early: the next page continues it.
LARGEST_PAGE = 16 * 1024 * 1024
#: A list leaves out arguments, results and outputs with more bytes than this.
LARGEST_VALUE = 16 * 1024
#: Limit of the results of all jobs of a run in one response, in bytes.
RESULTS_BYTES = 4 * 1024 * 1024
#: Stands for a result that was left out. No stored result equals it: msgpack never uses this byte.
LEFT_OUT = b"\xc1"
#: One read from the store has about READ_BYTES bytes, estimated from the previous read, and a number of rows in this
#: range. The first read has FIRST_ROWS rows.
READ_BYTES, FEWEST_ROWS, FIRST_ROWS, MOST_ROWS = 8 * 1024 * 1024, 10, 50, 1000

_encode = msgspec.json.Encoder(enc_hook=repr).encode


class PageBudget:
    """Counts the bytes of a list's items."""

    def __init__(self, limit: int = LARGEST_PAGE) -> None:
        self._limit = limit
        self._used = 0

    def fits(self, item: Any) -> bool:
        """Return whether the list may contain an item, and count it if so."""
        size = len(_encode(item))
        if self._used + size > self._limit:
            return False
        self._used += size
        return True


async def read_jobs(core: Core, store: Store, limit: int | None = None, **filters: Any) -> AsyncGenerator[Job, None]:
    """Yield jobs, newest first, at most `limit`. Rows are read in pages of bounded size. `filters`: as in
    `Store.list_jobs`.
    """
    size, left = FIRST_ROWS, limit
    before = filters.pop("before", "")
    while left is None or left > 0:
        asked = size if left is None else min(size, left)
        page = await send(core, store.list_jobs(**filters, before=before, limit=asked))
        for job in page:
            yield job
        if len(page) < asked:
            return
        before = page[-1].id
        if left is not None:
            left -= len(page)
        average = sum(len(job.args) + len(job.result or b"") for job in page) // len(page) + 1
        size = max(FEWEST_ROWS, min(MOST_ROWS, READ_BYTES // average, size * 4))


class LightJobs:
    """Drops what makes many jobs large: all arguments, large results and, once the results have RESULTS_BYTES bytes
    together, all further ones. A dropped result becomes LEFT_OUT.
    """

    def __init__(self) -> None:
        self._left = RESULTS_BYTES

    def lighten(self, job: Job) -> Job:
        result = job.result
        if result is not None:
            self._left -= len(result)
            if len(result) > LARGEST_VALUE or self._left < 0:
                result = LEFT_OUT
        return replace(job, args=b"", result=result)
