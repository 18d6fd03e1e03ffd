"""Count the round trips that renew a thousand held locks of one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvloop
from bench.harness import Bench, ContenderProcess, Row

from backstay import Backstay
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.runtime.lease import RENEW_AT

LOCKS, TTL = 1000, 3.0


@contextmanager
def holder(url: str) -> Iterator[Callable[[int], dict[str, int]]]:
    """Yield a function that holds the locks for some renewal intervals and counts the keeper's round trips. One call of
    `BlockingLink.call_many` is one round trip: it writes all requests and then reads all replies.
    """
    trips = 0
    call_many = BlockingLink.call_many

    def counted(link: BlockingLink, requests: list[bytes], timeout: float | None = None) -> list[Any]:
        nonlocal trips
        trips += 1
        return call_many(link, requests, timeout)

    BlockingLink.call_many = counted  # type: ignore[method-assign]  # this process does nothing else

    async def hold(intervals: int) -> dict[str, int]:
        renewed = 0

        def listen(event: Any) -> None:
            nonlocal renewed
            if event.kind == "lease.renewed":
                renewed += event.facts["count"]

        async with Backstay(url) as stay:
            leases = await asyncio.gather(*[stay.lock(f"held-{i}", ttl=TTL).acquire() for i in range(LOCKS)])
            # Begin to count halfway between the first and the second renewal: the first one also opens the keeper's
            # connection.
            await asyncio.sleep(1.5 * TTL * RENEW_AT)
            stay.telemetry.subscribe(listen)
            before = trips
            await asyncio.sleep(intervals * TTL * RENEW_AT)
            counted = {"trips": trips - before, "renewed": renewed, "lost": sum(lease.is_lost for lease in leases)}
            await asyncio.gather(*[lease.release() for lease in leases])
        return counted

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        yield lambda intervals: runner.run(hold(intervals))


def renewal(bench: Bench) -> list[Row]:
    intervals = bench.pick(6, 3)
    bench.report(f"renewal: {LOCKS} locks for {intervals} intervals")
    with ContenderProcess(holder, bench.url) as worker:
        counted = worker.call(intervals)
    trips = counted["trips"] / intervals
    return [
        Row(
            f"round trips to renew {LOCKS:,} locks once",
            f"{trips:.2f} ({counted['renewed'] / intervals:,.0f} renewed, {counted['lost']} lost)",
            target="≤ 4, none lost",
            met=trips <= 4 and counted["lost"] == 0 and counted["renewed"] >= LOCKS * (intervals - 1),
            detail=counted,
        )
    ]
