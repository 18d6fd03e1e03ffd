"""Input for type checkers, never run: a job has its function's signature; lines marked `wrong` must be errors."""

from typing import assert_type

from backstay import Backstay, Flow, JobHandle, RunHandle, exponential, sync
from backstay.job.api.handle import BlockingJobHandle
from backstay.job.run_model import RunEvent, RunStatus
from backstay.testing.jobs import assert_enqueued, drain
from backstay.testing.waiting import WITHIN
from backstay.workflow.task import Output, Task

stay = Backstay("memory://")
blocking = sync.Backstay("memory://")


@stay.job(queue="pics", retries=5, backoff=exponential(1, max=300), timeout=60, labels=["gpu"], rate="100/minute")
async def resize(path: str, size: int = 100) -> str:
    return path * size


@stay.job()
def count(*words: str, case: bool = False) -> int:
    return len(words) + case


@stay.job
async def bare(n: int) -> bytes:
    return bytes(n)


@blocking.job
def plain(n: int) -> bool:
    return n > 0


@blocking.job(unique="ship:{order}")
def ship(order: int) -> list[str]:
    return [str(order)]


@stay.workflow
def release(flow: Flow, version: str, *, dry: bool = False) -> None:
    path = flow.add(resize, version)
    assert_type(path, Task[str])
    assert_type(path.output, Output[str])
    assert_type(flow.map(bare, [1, 2], after=path), Task[list[bytes]])


@blocking.workflow(name="nightly", timeout=60)
def nightly(flow: Flow, n: int) -> None:
    flow.add(plain, n)


async def right() -> None:
    run = await release.start("1.2", dry=True)
    assert_type(run, RunHandle)
    assert_type(await stay.workflows.start("release", {"version": "1"}), RunHandle)
    assert_type(nightly.start(1).wait(timeout=3), RunStatus)
    assert_type([event async for event in run.events()], list[RunEvent])
    handle = await resize.enqueue("a.png", size=64)
    assert_type(handle, JobHandle[str])
    assert_type(await handle.result(timeout=WITHIN), str)
    assert_type(await count.enqueue("a", "b", case=True), JobHandle[int])
    assert_type(await resize.options(delay=10, priority=5).enqueue("b.png"), JobHandle[str])
    assert_type(await resize.enqueue_many([("a",), ("b",)]), list[JobHandle[str]])
    assert_type(await bare.enqueue(1), JobHandle[bytes])
    assert_type(plain.enqueue(1), BlockingJobHandle[bool])
    assert_type(ship.enqueue(3), BlockingJobHandle[list[str]])
    assert_type(ship.enqueue(3).result(), list[str])
    assert_type(await drain(stay), dict[str, int])
    assert_type(drain(blocking), dict[str, int])
    await assert_enqueued(resize, "a.png", size=64)
    assert_enqueued(ship, 3)


async def wrong() -> None:
    await release.start(3)  # wrong
    await release.start()  # wrong
    await release.start("1", wet=True)  # wrong
    nightly.start("x")  # wrong
    stay.workflow(timeout="long")  # wrong
    await resize.enqueue(5)  # wrong
    await resize.enqueue()  # wrong
    await resize.enqueue("a.png", colour="red")  # wrong
    await resize.options(delay="soon").enqueue("a.png")  # wrong
    await resize.options(colour="red").enqueue("a.png")  # wrong
    await count.enqueue(1)  # wrong
    await bare.enqueue("x")  # wrong
    ship.enqueue("x")  # wrong
    stay.job(retries="many")  # wrong
    stay.job(delay=3)  # wrong
    await assert_enqueued(resize, 5)  # wrong
    _: int = ship.enqueue(3).result()  # wrong
