"""The three kinds of notice: jobs that became pending, chains that completed, ownership that was lost."""

from __future__ import annotations

from backstay.testing.conformance.driver import Stage, claim
from backstay.testing.conformance.hub.cases import announce, listen, publish
from backstay.testing.waiting import soon

A_HINT = "550e8400-e29b-41d4-a716-446655440000"
#: Malformed messages, as a foreign program may publish them on these channels.
RUBBISH = (
    "",
    "no colon at all",
    ":type-without-hint",
    f"{A_HINT}:",
    f"{A_HINT}",
    "not-a-uuid:resize",
    "550e8400e29b41d4a716446655440000:resize",
    f"{{{A_HINT}}}:resize",
    f"{A_HINT}:{'t' * 600}",
    "x" * 7000,
)


class Notices:
    """Each notice reaches the listeners that it concerns, and no others."""

    @claim
    async def test_an_announcement_carries_its_type_and_its_hint(self, stage: Stage) -> None:
        announcer, worker = await stage.actors(2)
        ear = await listen(worker, "scheduled", ["resize"])
        hint = await announce(announcer, "scheduled", "resize", 2)
        assert await ear.hear() == {"type": "resize", "hint_id": hint, "missed": False}

    @claim
    async def test_a_worker_is_notified_of_its_own_types_only(self, stage: Stage) -> None:
        announcer, worker, other, anybody = await stage.actors(4)
        ear = await listen(worker, "scheduled", ["resize", "a:b:c"])
        single, every = await listen(other, "scheduled", "mail"), await listen(anybody, "scheduled")
        for job_type in ("resize", "unknown", "mail", "a:b:c", "a"):
            await announce(announcer, "scheduled", job_type)
        assert {(await ear.hear())["type"] for _ in range(2)} == {"resize", "a:b:c"}
        assert (await single.hear())["type"] == "mail"
        assert {(await every.hear())["type"] for _ in range(5)} == {"resize", "unknown", "mail", "a:b:c", "a"}
        assert await ear.hears_nothing()

    @claim
    async def test_names_with_colons_and_unicode_survive(self, stage: Stage) -> None:
        announcer, worker = await stage.actors(2)
        names = ["a:b", "::", "été:{x}", "日本語", "with space"]
        ear = await listen(worker, "scheduled", names)
        for name in names:
            await announce(announcer, "scheduled", name)
        assert {(await ear.hear())["type"] for _ in names} == set(names)

    @claim
    async def test_a_chains_end_reaches_those_who_wait_for_it(self, stage: Stage) -> None:
        announcer, waiter, other = await stage.actors(3)
        ear, elsewhere = await listen(waiter, "chain_completed", "c:1"), await listen(other, "chain_completed", "c:2")
        await announce(announcer, "chain_completed", "c:1")
        assert await ear.hear() == {"id": "c:1", "missed": False}
        assert await elsewhere.hears_nothing()

    @claim
    async def test_lost_ownership_reaches_the_worker_of_that_job(self, stage: Stage) -> None:
        announcer, worker, other = await stage.actors(3)
        ear, elsewhere = await listen(worker, "ownership_lost", "j1"), await listen(other, "ownership_lost", "j2")
        await announce(announcer, "ownership_lost", "j1")
        assert await ear.hear() == {"job_id": "j1", "missed": False}
        assert await elsewhere.hears_nothing()

    @claim
    async def test_rubbish_from_a_stranger_is_passed_over(self, stage: Stage) -> None:
        stranger, announcer, worker = await stage.actors(3)
        ear = await listen(worker, "scheduled")
        chain = await listen(worker, "chain_completed", "c1")
        for payload in RUBBISH:
            for channel in ("sched", "chainc", "owls"):
                await publish(stranger, channel, payload)
        await announce(announcer, "scheduled", "resize")
        await announce(announcer, "chain_completed", "c1")
        assert (await ear.hear())["type"] == "resize"
        assert (await chain.hear())["id"] == "c1"

        async def all_counted() -> bool:
            return bool((await worker.do("hub_counts")).get("hub.malformed", 0) >= len(RUBBISH))

        assert await soon(all_counted)
