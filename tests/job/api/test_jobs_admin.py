"""`stay.jobs` and `stay.queues`: list, retry, purge, pause, limit and drain."""

from __future__ import annotations

import asyncio
import uuid

import pytest

import backstay
import backstay.sync
from backstay import BadArgument, ConfigError, ResultTimeout
from backstay.job.model import WorkerRecord
from backstay.testing.jobs import Clock
from backstay.testing.waiting import WITHIN
from support.app import UNSHARDED, url_of, wait_for_state, working
from support.event_loop import on_a_loop


def new_app(url):
    return backstay.Backstay(url, namespace=f"a{uuid.uuid4().hex[:10]}")


class FailingJob:
    """A job that fails until `fixed` is set."""

    def __init__(self, stay):
        self.fixed = False

        @stay.job(retries=0)
        async def failing(n: int) -> int:
            if not self.fixed:
                raise RuntimeError("broken")
            return n

        self.job = failing


@on_a_loop
async def test_the_dead_letter_is_listed_retried_and_purged(url):
    async with new_app(url) as stay:
        broken = FailingJob(stay)
        async with working(stay):
            handles = await broken.job.enqueue_many([(i,) for i in range(5)])
            for handle in handles:
                await wait_for_state(stay, handle, "failed")
            dead = await stay.jobs.dead.list()
            assert [job.args for job in dead] == [{"n": n} for n in (4, 3, 2, 1, 0)]
            assert dead[0].error.message == "broken"
            assert [job.id for job in await stay.jobs.dead.list(before=dead[2].id)] == [job.id for job in dead[3:]]
            broken.fixed = True
            assert await stay.jobs.dead.retry(handles[0].id) in ("pending", "running", "completed")
            assert await handles[0].result(WITHIN) == 0
            assert await stay.jobs.dead.retry_all(type="another") == 0
            assert await stay.jobs.dead.retry_all() == 4
            assert [await handle.result(WITHIN) for handle in handles] == list(range(5))
        assert await stay.jobs.dead.list() == []
        assert await stay.jobs.purge() == 5
        assert await stay.jobs.list() == []


@on_a_loop
async def test_only_ended_jobs_are_purged(url):
    async with new_app(url) as stay:
        broken = FailingJob(stay)
        await broken.job.enqueue(1)
        with pytest.raises(ConfigError, match="cancel the others"):
            await stay.jobs.purge("pending")
        assert await stay.jobs.dead.purge() == 0
        assert len(await stay.jobs.list()) == 1


@on_a_loop
async def test_a_completed_job_is_not_retried(url):
    async with new_app(url) as stay:
        broken = FailingJob(stay)
        broken.fixed = True
        async with working(stay):
            handle = await broken.job.enqueue(1)
            await handle.result(WITHIN)
        with pytest.raises(ConfigError, match="enqueue a new job"):
            await stay.jobs.retry(handle.id)


@on_a_loop
async def test_a_scheduled_job_can_be_run_now(url):
    async with new_app(url) as stay:
        broken = FailingJob(stay)
        broken.fixed = True
        async with working(stay):
            handle = await broken.job.options(delay=600).enqueue(7)
            assert await stay.jobs.retry(handle.id) in ("pending", "running")
            assert await handle.result(WITHIN) == 7


@on_a_loop
async def test_lists_are_filtered_and_paged(url):
    async with new_app(url) as stay:

        @stay.job(queue="mail")
        async def mail(n: int) -> None: ...

        @stay.job()
        async def other() -> None: ...

        await mail.enqueue_many([(n,) for n in range(5)])
        await other.enqueue()
        await other.options(delay=60).enqueue()
        assert [job.args["n"] for job in await stay.jobs.list(queue="mail", limit=2)] == [4, 3]
        last = (await stay.jobs.list(type="mail", limit=2))[-1].id
        assert [job.args["n"] for job in await stay.jobs.list(type="mail", before=last)] == [2, 1, 0]
        assert [job.type for job in await stay.jobs.list(state="scheduled")] == ["other"]
        with pytest.raises(ConfigError, match="state must be one of"):
            await stay.jobs.list(state="lost")
        with pytest.raises(ConfigError, match="before="):
            await stay.jobs.list(limit=5000)


@on_a_loop
async def test_a_job_of_another_program_is_enqueued_by_name(url):
    namespace = f"n{uuid.uuid4().hex[:10]}"
    async with (
        backstay.Backstay(url, namespace=namespace) as here,
        backstay.Backstay(url, namespace=namespace, engine=here.engine if url == "memory://" else None) as there,
    ):

        @there.job()
        async def resize(path: str, size: int = 3) -> str:
            return path * size

        async with working(there):
            handle = await here.jobs.enqueue("resize", {"path": "ab"}, priority=2)
            assert await handle.result(WITHIN) == "ababab"
            assert (await here.jobs.get(handle.id)).priority == 2
            assert await (await there.jobs.enqueue("resize", ["x"])).result(WITHIN) == "xxx"
            found = await here.jobs.handle(handle.id)
            assert await found.result(WITHIN) == "ababab"
        with pytest.raises(ConfigError, match="by name"):
            await here.jobs.enqueue("resize", ["x"])
        with pytest.raises(BadArgument, match="'path'"):
            await here.jobs.enqueue("resize", {"path": object()})
        assert "resize" not in here.internals.job_types


@pytest.mark.parametrize("api", ["async", "blocking"])
def test_a_program_that_does_not_define_a_job_says_that_it_does_not_know_its_options(api, caplog):
    """Once for each type; and not if the call passes the options, or if the process has the definition."""
    given = [{}, {"retries": 7}, {"queue": "mail", "retries": 7}]

    async def enqueue_all():
        async with backstay.Backstay("memory://") as stay:
            stay.job(retries=5, queue="here")(known)
            names = ["other", "other", "third", "known"]
            handles = [
                await stay.jobs.enqueue(name, {}, **options) for name, options in zip(names, [*given, {}], strict=True)
            ]
            return [await stay.jobs.get(handle.id) for handle in handles]

    def enqueue_all_blocking():
        with backstay.sync.Backstay("memory://") as stay:
            stay.job(retries=5, queue="here")(known)
            names = ["other", "other", "third", "known"]
            handles = [
                stay.jobs.enqueue(name, {}, **options) for name, options in zip(names, [*given, {}], strict=True)
            ]
            return [stay.jobs.get(handle.id) for handle in handles]

    def known() -> None: ...

    jobs = asyncio.run(enqueue_all()) if api == "async" else enqueue_all_blocking()
    assert [(job.queue, job.retries) for job in jobs] == [("default", 3), ("default", 7), ("mail", 7), ("here", 5)]
    (warning,) = [entry.getMessage() for entry in caplog.records if "not defined in this process" in entry.getMessage()]
    assert "'other'" in warning
    assert "queue='default', retries=3" in warning


@on_a_loop
async def test_jobs_of_a_paused_queue_are_not_claimed_until_it_is_resumed(url):
    async with new_app(url) as stay:
        broken = FailingJob(stay)
        broken.fixed = True
        await stay.queues.pause("default")
        async with working(stay):
            handle = await broken.job.enqueue(1)
            with pytest.raises(ResultTimeout):
                await handle.result(0.5)
            queue = await stay.queues.get("default")
            assert (queue.paused, queue.pending) == (True, 1)
            await stay.queues.resume("default")
            assert await handle.result(WITHIN) == 1


@on_a_loop
async def test_draining_waits_for_running_jobs(url):
    async with new_app(url) as stay:
        go = asyncio.Event()

        @stay.job()
        async def slow() -> None:
            await go.wait()

        async with working(stay):
            handle = await slow.enqueue()
            await wait_for_state(stay, handle, "running")
            with pytest.raises(ResultTimeout, match="paused with 1 jobs still running"):
                await stay.queues.drain("default", timeout=0.2)
            draining = asyncio.create_task(stay.queues.drain("default"))
            go.set()
            queue = await asyncio.wait_for(draining, WITHIN)
            assert queue.drained
            assert queue.completed == 1


@pytest.mark.parametrize("url", UNSHARDED, indirect=True)
@on_a_loop
async def test_the_rate_of_a_queue_applies_to_all_its_jobs(url):
    async with new_app(url) as stay:
        broken = FailingJob(stay)
        broken.fixed = True
        await stay.queues.rate("default", "2/hour")
        assert (await stay.queues.get("default")).rate == "2/hour"
        handles = await broken.job.enqueue_many([(i,) for i in range(4)])
        await stay.worker(signals=False).run(burst=True)
        assert [await handle.status() for handle in handles] == ["completed", "completed", "pending", "pending"]
        await stay.queues.rate("default", None)
        await stay.worker(signals=False).run(burst=True)
        assert {await handle.status() for handle in handles} == {"completed"}
        with pytest.raises(ConfigError, match="100/minute"):
            await stay.queues.rate("default", "often")
        with pytest.raises(ConfigError, match="burst="):
            await stay.queues.rate("default", None, burst=3)


@on_a_loop
async def test_workers_are_listed(url):
    async with new_app(url) as stay:
        FailingJob(stay)
        async with working(stay, name="w1", queues=["a", "b"], labels=["gpu"]):
            for _ in range(200):
                workers = await stay.jobs.workers()
                if workers:
                    break
                await asyncio.sleep(0.02)
            (worker,) = workers
            assert (worker.id, worker.queues, worker.labels) == ("w1", ("a", "b"), ("gpu",))
            assert (worker.status, worker.running) == ("idle", 0)
            assert worker.beat >= worker.registered


@on_a_loop
async def test_a_worker_is_busy_while_it_runs_jobs_and_offline_without_heartbeats():
    clock = Clock()
    engine = clock.engine()
    async with backstay.Backstay(engine=engine) as stay:
        store = stay.internals.job_store
        for name, running in (("idle", 0), ("busy", 2)):
            await stay._core.port.apply(store.heartbeat(WorkerRecord(id=name, running=running)))
        assert {worker.id: worker.status for worker in await stay.jobs.workers()} == {"idle": "idle", "busy": "busy"}
        clock.advance(31)
        assert {worker.status for worker in await stay.jobs.workers()} == {"offline"}
    await engine.close()


def test_the_blocking_jobs_api_has_the_same_methods(request):
    with backstay.sync.Backstay(url_of("sqlite", request)) as stay:

        @stay.job(retries=0)
        def fail(n: int) -> None:
            raise RuntimeError

        handles = fail.enqueue_many([(1,), (2,)])
        stay.worker(signals=False).run(burst=True)
        assert len(stay.jobs.dead.list()) == 2
        assert stay.jobs.dead.retry(handles[0].id) == "pending"
        assert stay.jobs.dead.retry_all() == 1
        assert stay.jobs.cancel(handles[0].id) == "cancelled"
        assert stay.jobs.get(handles[0].id).state == "cancelled"
        stay.queues.pause("default")
        assert stay.queues.drain("default", timeout=5).drained
        stay.queues.resume("default")
        stay.queues.rate("default", "5/s")
        assert [queue.name for queue in stay.queues.list()] == ["default"]
        assert stay.jobs.purge("cancelled") == 1
        assert stay.jobs.logs(handles[1].id) == []
        assert stay.jobs.outputs(handles[1].id) == {}
        assert stay.jobs.workers() == []
        assert stay.jobs.handle(handles[1].id).status() == "pending"
        assert stay.jobs.enqueue("fail", {"n": 1}).status() == "pending"
