"""`@stay.locked` names a lock by the function's arguments: one call per account at a time."""

import asyncio

from backstay import Backstay

stay = Backstay("memory://")
balance = {"ada": 0, "bo": 0}


@stay.locked("account:{account}", ttl=10, wait=5)
async def deposit(account: str, amount: int) -> None:
    before = balance[account]
    await asyncio.sleep(0.01)  # without the lock, a concurrent deposit would be lost here (lost update)
    balance[account] = before + amount


async def main() -> None:
    async with stay:
        await asyncio.gather(*[deposit(account, 10) for account in ("ada", "bo") for _ in range(5)])
    print(balance)
    assert balance == {"ada": 50, "bo": 50}


asyncio.run(main())
