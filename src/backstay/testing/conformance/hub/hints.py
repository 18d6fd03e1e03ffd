"""Hints: an announcement of N jobs wakes N slots, regardless of the number of listeners."""

from __future__ import annotations

import asyncio
import uuid

from backstay.testing.conformance.actor import assert_refused
from backstay.testing.conformance.driver import Stage, driver_test
from backstay.testing.conformance.hub.cases import ActorSubscription, announce, listen, take

#: Announcements per test.
ROUNDS = 10


async def announce_to_listeners(stage: Stage, *, listeners: int, jobs: int, slots: int, rounds: int) -> None:
    """Announce `jobs` jobs to all listeners, `rounds` times. Each listener calls `take_hint` for up to `slots` of the
    announced jobs. The numbers that the listeners get must add up to the announced number or, if they have fewer slots
    than that, to the number of their slots.
    """
    announcer, *crowd = await stage.actors(listeners + 1)
    subscriptions = [await listen(actor, "scheduled", ["resize"]) for actor in crowd]
    for nth in range(rounds):
        hint = await announce(announcer, "scheduled", "resize", jobs)

        async def take_hint(subscription: ActorSubscription, hint: str = hint) -> int:
            assert (await subscription.receive())["hint_id"] == hint
            return await take(subscription.actor, hint, slots)

        taken = await asyncio.gather(*[take_hint(subscription) for subscription in subscriptions])
        assert sum(taken) == min(jobs, slots * listeners), f"round {nth}: {taken}"
        assert max(taken) <= slots


class HubHintsTests:
    """Tests of `take_hint`."""

    @driver_test
    async def test_exactly_as_many_jobs_are_taken_as_were_announced(self, stage: Stage) -> None:
        await announce_to_listeners(stage, listeners=8, jobs=3, slots=1, rounds=ROUNDS)

    @driver_test
    async def test_a_worker_takes_for_all_its_free_slots_at_once(self, stage: Stage) -> None:
        await announce_to_listeners(stage, listeners=6, jobs=9, slots=4, rounds=ROUNDS)

    @driver_test
    async def test_fewer_slots_than_jobs_take_one_job_per_slot(self, stage: Stage) -> None:
        await announce_to_listeners(stage, listeners=3, jobs=20, slots=2, rounds=2)

    @driver_test
    async def test_an_exhausted_hint_denies(self, stage: Stage) -> None:
        announcer, one, two = await stage.actors(3)
        hint = await announce(announcer, "scheduled", "resize", 3)
        assert await take(one, hint, 2) == 2
        assert await take(two, hint, 2) == 1
        assert [await take(actor, hint, n) for actor in (one, two) for n in (1, 20)] == [0, 0, 0, 0]

    @driver_test
    async def test_a_missing_hint_admits_every_worker(self, stage: Stage) -> None:
        one, two = await stage.actors(2)
        gone = str(uuid.uuid4())
        assert [await take(actor, gone, n) for actor in (one, two) for n in (1, 20)] == [1, 20, 1, 20]

    @driver_test
    async def test_a_notice_of_something_missed_needs_no_hint(self, stage: Stage) -> None:
        (one,) = await stage.actors(1)
        assert await take(one, "", 5) == 5

    @driver_test
    async def test_takes_and_denials_are_counted(self, stage: Stage) -> None:
        (one,) = await stage.actors(1)
        hint = await announce(one, "scheduled", "resize", 3)
        assert [await take(one, hint, 2) for _ in range(4)] == [2, 1, 0, 0]
        counts = await one.do("hub_counts")
        assert (counts["hub.hint_taken"], counts["hub.hint_denied"]) == (2, 2)

    @driver_test
    async def test_hints_are_counted_separately(self, stage: Stage) -> None:
        announcer, worker = await stage.actors(2)
        first = await announce(announcer, "scheduled", "resize")
        second = await announce(announcer, "scheduled", "resize")
        assert first != second
        assert await take(worker, first) == 1
        assert await take(worker, first) == 0
        assert await take(worker, second) == 1

    @driver_test
    async def test_an_invalid_hint_is_refused(self, stage: Stage) -> None:
        (one,) = await stage.actors(1)
        for hint_id, n in (("re\0size", 1), ("x" * 5000, 1), (7, 1), (str(uuid.uuid4()), 0), (str(uuid.uuid4()), -1)):
            await assert_refused(take(one, hint_id, n), "ConfigError")
