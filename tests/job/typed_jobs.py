"""Not run, only read by type checkers: a job has its function's signature. What is marked `wrong` must be refused."""

from typing import assert_type

from holdfast import Holdfast, JobHandle, exponential, sync
from holdfast.job.handle import BlockingJobHandle
from holdfast.testing.jobs import assert_enqueued, drain

hf = Holdfast("memory://")
blocking = sync.Holdfast("memory://")


@hf.job(queue="pics", retries=5, backoff=exponential(1, max=300), timeout=60, labels=["gpu"], rate="100/minute")
async def resize(path: str, size: int = 100) -> str:
    return path * size


@hf.job()
def count(*words: str, case: bool = False) -> int:
    return len(words) + case


@hf.job
async def bare(n: int) -> bytes:
    return bytes(n)


@blocking.job
def plain(n: int) -> bool:
    return n > 0


@blocking.job(unique="ship:{order}")
def ship(order: int) -> list[str]:
    return [str(order)]


async def right() -> None:
    handle = await resize.enqueue("a.png", size=64)
    assert_type(handle, JobHandle[str])
    assert_type(await handle.result(timeout=10), str)
    assert_type(await count.enqueue("a", "b", case=True), JobHandle[int])
    assert_type(await resize.options(delay=10, priority=5).enqueue("b.png"), JobHandle[str])
    assert_type(await resize.enqueue_many([("a",), ("b",)]), list[JobHandle[str]])
    assert_type(await bare.enqueue(1), JobHandle[bytes])
    assert_type(plain.enqueue(1), BlockingJobHandle[bool])
    assert_type(ship.enqueue(3), BlockingJobHandle[list[str]])
    assert_type(ship.enqueue(3).result(), list[str])
    assert_type(await drain(hf), dict[str, int])
    assert_type(drain(blocking), dict[str, int])
    await assert_enqueued(resize, "a.png", size=64)
    assert_enqueued(ship, 3)


async def wrong() -> None:
    await resize.enqueue(5)  # wrong
    await resize.enqueue()  # wrong
    await resize.enqueue("a.png", colour="red")  # wrong
    await resize.options(delay="soon").enqueue("a.png")  # wrong
    await resize.options(colour="red").enqueue("a.png")  # wrong
    await count.enqueue(1)  # wrong
    await bare.enqueue("x")  # wrong
    ship.enqueue("x")  # wrong
    hf.job(retries="many")  # wrong
    hf.job(delay=3)  # wrong
    await assert_enqueued(resize, 5)  # wrong
    _: int = ship.enqueue(3).result()  # wrong
