"""A watcher never misses a job's end: it is notified of a later end, and an end before the watch is in the reply."""

from __future__ import annotations

from backstay.job.model import Failure, Job
from backstay.testing.conformance.job.bench import LEASE, SECOND, Bench, StoreClient, store_test

OOPS = Failure("OSError", "disk full")
MANY = 1_000_000


async def watched(client: StoreClient, job: str, *, chain: bool = False) -> Job:
    seen: Job | None = await client.call("watch", job, chain=chain)
    assert seen is not None
    return seen


class JobWatchingTests:
    """Tests of `watch`."""

    @store_test
    async def test_a_watched_chain_is_announced_when_it_ends(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        heard = await bench.listen("chainc")
        for kind in ("complete", "fail", "cancel"):
            id_ = await one.add()
            assert (await watched(other, id_, chain=True)).state == "pending"
            job = await one.take()
            await one.finish(job, kind, error=OOPS)
            assert await heard.soon(id_), kind

    @store_test
    async def test_a_watched_job_is_announced_when_it_ends(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        heard = await bench.listen("chainc")
        id_ = await one.add()
        job = await one.take()
        assert (await watched(other, id_)).state == "running"
        await one.finish(job)
        assert await heard.soon(id_)

    @store_test
    async def test_a_job_that_has_ended_is_seen_at_once(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add()
        await one.finish(await one.take(), result=b"R")
        for chain in (False, True):
            seen = await watched(other, id_, chain=chain)
            assert (seen.id, seen.state, seen.result) == (id_, "completed", b"R")

    @store_test
    async def test_watching_an_unknown_job_returns_nothing(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        for chain in (False, True):
            assert await one.call("watch", bench.job().id, chain=chain) is None

    @store_test
    async def test_a_chain_is_announced_when_its_last_job_ends(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        chains, jobs = await bench.listen("chainc"), await bench.listen("jobc")
        chain = await one.add()
        await watched(other, chain, chain=True)
        job = await one.take()
        new = bench.job(chain=chain)
        await one.finish(job, next=new)
        # A wrong announcement of the chain would arrive before that of this job.
        marker = await one.add("marker")
        await watched(other, marker)
        last, marked = await one.claim(5)
        assert (last.id, marked.id) == (new.id, marker)
        await one.finish(marked)
        assert await chains.soon(marker)
        assert chain not in chains.payloads
        await one.finish(last, result=b"end")
        assert await chains.soon(chain)
        assert jobs.payloads == []
        seen = await watched(other, chain, chain=True)
        assert (seen.id, seen.state, seen.result) == (new.id, "completed", b"end")

    @store_test
    async def test_a_chain_is_watched_to_its_end_although_its_first_job_is_forgotten(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        heard = await bench.listen("chainc")
        chain = await one.add(keep=SECOND)
        new = bench.job(chain=chain)
        await one.finish(await one.take(), next=new)
        bench.advance(SECOND)
        assert await one.call("prune", bench.shard, MANY) == 1
        seen = await watched(other, chain, chain=True)
        assert (seen.id, seen.state) == (new.id, "pending")
        await one.finish(await one.take(), result=b"end")
        assert await heard.soon(chain)
        assert (await watched(other, chain, chain=True)).result == b"end"

    @store_test
    async def test_a_watched_job_with_a_next_job_is_announced_as_a_job(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        chains, jobs = await bench.listen("chainc"), await bench.listen("jobc")
        first = await one.add()
        await watched(other, first)
        job = await one.take()
        await one.finish(job, result=b"one", next=bench.job(chain=first))
        assert await jobs.soon(first)
        assert chains.payloads == []

    @store_test
    async def test_an_end_without_a_finish_is_announced_too(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        heard = await bench.listen("chainc")
        dying = await one.add(retries=0)
        await watched(other, dying, chain=True)
        skipped = await one.add(after=(dying,))
        await watched(other, skipped, chain=True)
        cancelled = await one.add()
        await watched(other, cancelled)
        await one.claim(1)
        await other.call("cancel", cancelled, "enough")
        assert await heard.soon(cancelled)
        bench.advance(LEASE)
        await other.reap()
        assert await heard.soon(dying)
        assert await heard.soon(skipped)

    @store_test
    async def test_a_job_without_watchers_is_not_announced(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        heard = await bench.listen("chainc")
        silent = await one.add()
        await one.finish(await one.take())
        marker = await one.add()
        await watched(other, marker)
        await one.finish(await one.take())
        assert await heard.soon(marker)
        assert silent not in heard.payloads

    @store_test
    async def test_a_retry_is_no_end(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        heard = await bench.listen("chainc")
        id_ = await one.add(retries=1)
        await watched(other, id_)
        await one.finish(await one.take(), "retry", error=OOPS)
        marker = await one.add(priority=9)
        await watched(other, marker)
        await one.finish(await one.take())
        assert await heard.soon(marker)
        assert id_ not in heard.payloads
        await one.finish(await one.take())
        assert await heard.soon(id_)
