"""Concurrent finishes, reads and writes in one run: no update is lost, and none is applied twice."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

from backstay.job.model import FINAL
from backstay.job.run_model import FINISHED, RunEvent
from backstay.testing.conformance.job.bench import Bench, StoreClient, long_store_test, store_test
from backstay.testing.conformance.run.cases import (
    StartedRun,
    all_events,
    begin,
    complete_concurrently,
    default_finish,
    plan_run,
)

DIAMOND = {"top": {}, "left": {"after": "top"}, "right": {"after": "top"}, "bottom": {"after": "left right"}}


class RunConcurrencyTests:
    """Tests of invariants that hold for every interleaving of calls."""

    @store_test
    async def test_two_concurrent_last_finishes_end_the_run_once(self, bench: Bench) -> None:
        clients = await bench.clients(4)
        for _ in range(15):
            run = await begin(clients[0], ["0", "1", "2", "3"])
            jobs = [(await client.claim(1))[0] for client in clients]
            await asyncio.gather(
                *[client.exchange([default_finish(job)]) for client, job in zip(clients, jobs, strict=True)]
            )
            seen = await run.audit()
            assert (seen.status, seen.counts, seen.events) == ("success", {"completed": 4}, 14)

    @store_test
    async def test_two_parents_that_end_at_the_same_moment_release_their_child_once(self, bench: Bench) -> None:
        clients = await bench.clients(3)
        for kinds in (("complete", "complete"), ("complete", "fail"), ("fail", "fail"), ("skip", "fail")) * 4:
            wishes = {
                "left": {},
                "right": {},
                "all": {"after": "left right"},
                "done": {"after": "left right", "when": "all_done"},
                "tell": {"after": "left right", "when": "any_failure"},
            }
            run = await begin(clients[0], wishes)
            jobs = [(await client.claim(1))[0] for client in clients[:2]]
            ends = zip(clients, jobs, kinds, strict=False)
            await asyncio.gather(*[client.exchange([default_finish(job, kind)]) for client, job, kind in ends])
            kinds_and_keys = Counter(await run.event_list())
            assert kinds_and_keys["ready", "done"] == 1
            assert kinds_and_keys["ready", "tell"] == ("fail" in kinds)
            assert kinds_and_keys["skipped", "tell"] == ("fail" not in kinds)
            assert kinds_and_keys["skipped", "all"] == (kinds != ("complete", "complete"))
            await run.audit()
            await asyncio.gather(*[client.call("cancel_run", run.id, "next, please") for client in clients])
            assert (await run.audit()).status == ("failure" if "fail" in kinds else "cancelled")

    @long_store_test
    async def test_a_fan_in_of_a_thousand_starts_its_last_job_once(self, bench: Bench) -> None:
        clients = await bench.clients(4)
        middle = [str(nth) for nth in range(1000)]
        run = await begin(clients[0], {**{name: {} for name in middle}, "last": {"after": middle}})
        had = await complete_concurrently(clients, 1001)
        assert had[-1].type == "last"
        assert sorted(job.type for job in had) == sorted([*middle, "last"])
        assert had[-1].upstream == {run.ids[name]: name.encode() for name in middle}
        seen = await run.audit()
        assert (seen.status, seen.counts, seen.events) == ("success", {"completed": 1001}, 2 + 3 * 1001)

    @long_store_test
    async def test_a_thousand_diamonds_end_once_each(self, bench: Bench) -> None:
        clients = await bench.clients(4)
        news = [plan_run(bench, DIAMOND) for _ in range(1000)]

        async def start(client: StoreClient, mine: int) -> None:
            for new in news[mine::4]:
                await client.call("start_run", new)

        await asyncio.gather(
            *[start(client, mine) for mine, client in enumerate(clients)], complete_concurrently(clients, 4000)
        )
        events, _ = await all_events(clients[0])
        assert len(events) == 1000 * 14
        by_run: defaultdict[str, list[RunEvent]] = defaultdict(list)
        for event in events:
            by_run[event.run].append(event)
        for new in news:
            mine = by_run[new.id]
            assert [event.seq for event in mine] == list(range(1, 15))
            assert Counter(event.kind for event in mine) == {
                "run_created": 1,
                "ready": 4,
                "started": 4,
                "completed": 4,
                "run_finished": 1,
            }
            order = [event.job for event in mine if event.kind == "started"]
            assert (order[0], order[3]) == (new.jobs[0].id, new.jobs[3].id)
        assert len(await clients[1].call("list_runs", status="success", limit=2000)) == 1000
        assert await clients[2].call("check_runs", bench.shard, 2000) == []
        for new in news[::100]:
            await StartedRun(clients[3], new).audit()

    @long_store_test
    async def test_a_reader_beside_many_writers_sees_each_event_once_in_order(self, bench: Bench) -> None:
        """Each poll of a reader starts at the cursor that the previous poll returned. The reader sees every event: a
        slow writer never stores an event at a position before a returned cursor.
        """
        clients = await bench.clients(5)
        *writers, reader = clients
        news = [plan_run(bench, DIAMOND) for _ in range(100)]
        seen: list[RunEvent] = []
        total = 100 * 14

        async def start(client: StoreClient, mine: int) -> None:
            for new in news[mine::4]:
                await client.call("start_run", new)

        async def read() -> None:
            cursor = ""
            while len(seen) < total:
                page = await reader.call("events", bench.shard, cursor, 50)
                seen.extend(page.events)
                cursor = page.cursor
                # Let the writers run, also if the store is the in-memory model, whose calls never suspend this task.
                await asyncio.sleep(0)

        starts = [start(client, mine) for mine, client in enumerate(writers)]
        await asyncio.gather(read(), *starts, complete_concurrently(writers, 400, batch=2))
        by_run: defaultdict[str, list[RunEvent]] = defaultdict(list)
        for event in seen:
            by_run[event.run].append(event)
        for new in news:
            assert by_run[new.id] == await StartedRun(reader, new).events()
        assert seen == (await all_events(reader))[0]

    @long_store_test
    async def test_a_reader_of_one_run_never_sees_a_gap(self, bench: Bench) -> None:
        clients = await bench.clients(4)
        *writers, reader = clients
        run = await begin(reader, [str(nth) for nth in range(200)])
        seen: list[RunEvent] = []

        async def read() -> None:
            while not seen or seen[-1].kind != "run_finished":
                page = await reader.call("run_events", run.id, len(seen), 30)
                assert [event.seq for event in page] == list(range(len(seen) + 1, len(seen) + 1 + len(page)))
                seen.extend(page)
                now = await run.run()
                assert sum(now.counts.values()) == 200
                assert (now.status in FINISHED) == (set(now.counts) <= set(FINAL)) == bool(now.finished)
                await asyncio.sleep(0)

        await asyncio.gather(read(), complete_concurrently(writers, 200, batch=3))
        assert seen == await run.events()
        await run.audit()

    @store_test
    async def test_a_rerun_and_a_trigger_at_the_same_moment_bring_each_job_back_once(self, bench: Bench) -> None:
        clients = await bench.clients(3)
        for _ in range(10):
            run = await begin(clients[0], {"a": {}, "b": {}, "c": {"after": "a b"}})
            jobs = await clients[0].claim(2)
            await clients[0].exchange([default_finish(job, "fail") for job in jobs])
            await asyncio.gather(
                clients[0].call("rerun_failed", run.id),
                clients[1].call("trigger", run.ids["a"]),
                clients[2].call("rerun_failed", run.id),
            )
            seen = await run.audit()
            if seen.counts == {"pending": 1, "failed": 1, "skipped": 1}:  # the trigger was applied first
                await clients[1].call("trigger", run.ids["b"])
                seen = await run.audit()
            assert seen.counts == {"pending": 2, "blocked": 1}
            kinds_and_keys = Counter(await run.event_list())
            assert (kinds_and_keys["run_reopened", ""], kinds_and_keys["ready", "a"], kinds_and_keys["ready", "b"]) == (
                1,
                2,
                2,
            )
            had = await complete_concurrently(clients, 3, batch=1)
            assert len(had) == 3
            assert (await run.audit()).status == "success"

    @store_test
    async def test_reapers_that_meet_end_a_run_once(self, bench: Bench) -> None:
        clients = await bench.clients(4)
        for _ in range(5):
            run = await begin(clients[0], {**{str(nth): {} for nth in range(8)}, "last": {"after": "0 1 2 3 4 5 6 7"}})
            assert len(await clients[0].claim(20)) == 8
            bench.advance(60_000_000)
            await asyncio.gather(*[client.reap() for client in clients])
            seen = await run.audit()
            assert (seen.status, seen.counts) == ("failure", {"failed": 8, "skipped": 1})
            assert Counter(kind for kind, _ in await run.event_list())["lease_expired"] == 8
