"""A semaphore with two permits, granted in arrival order."""

import asyncio

from backstay import Backstay

busy = most = 0


async def render(stay: Backstay, frame: int) -> None:
    global busy, most  # noqa: PLW0603 - counts concurrent holders
    async with stay.semaphore("gpu", permits=2, ttl=10):
        busy += 1
        most = max(most, busy)
        print(f"frame {frame}, {busy} rendering")
        await asyncio.sleep(0.05)
        busy -= 1


async def main() -> None:
    async with Backstay("memory://") as stay:
        await asyncio.gather(*[render(stay, frame) for frame in range(6)])
    assert most == 2


asyncio.run(main())
