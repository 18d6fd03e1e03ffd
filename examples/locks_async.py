"""A lock on an event loop: three tasks take turns, each with a higher fence than the one before."""

import asyncio

from holdfast import Holdfast


async def pay(hf: Holdfast, who: str) -> None:
    async with hf.lock("invoice:42", ttl=10, wait=5) as lease:
        print(f"{who} holds {lease.name}, fence {lease.fence}")
        await asyncio.sleep(0.1)


async def main() -> None:
    async with Holdfast("memory://") as hf:
        await asyncio.gather(*[pay(hf, who) for who in ("Ada", "Bo", "Cleo")])
        busy = await hf.lock("invoice:42").acquire()
        print("free?", await hf.lock("invoice:42").try_acquire() is not None)
        await busy.release()


asyncio.run(main())
