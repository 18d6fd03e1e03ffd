"""A lock on an event loop: three tasks acquire it in turn, each with a higher fence than the one before."""

import asyncio

from backstay import Backstay


async def pay(stay: Backstay, who: str) -> None:
    async with stay.lock("invoice:42", ttl=10, wait=5) as lease:
        print(f"{who} holds {lease.name}, fence {lease.fence}")
        await asyncio.sleep(0.1)


async def main() -> None:
    async with Backstay("memory://") as stay:
        await asyncio.gather(*[pay(stay, who) for who in ("Ada", "Bo", "Cleo")])
        busy = await stay.lock("invoice:42").acquire()
        print("free?", await stay.lock("invoice:42").try_acquire() is not None)
        await busy.release()


asyncio.run(main())
