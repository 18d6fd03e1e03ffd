"""The three kinds of notice: jobs that became pending, chains that completed, ownership that was lost."""

from __future__ import annotations

from backstay.testing.conformance.driver import Stage, driver_test
from backstay.testing.conformance.hub.cases import announce, listen, publish
from backstay.testing.waiting import soon

A_HINT = "550e8400-e29b-41d4-a716-446655440000"
#: Malformed messages, as a foreign program may publish them on these channels.
RUBBISH = (
    "",
    f"{A_HINT}:",
    f"{A_HINT}",
    f"{A_HINT}:{'t' * 600}",
    "t" * 600,
    "x" * 7000,
)
#: Payloads of programs that announce jobs without a hint id: the payload is the type.
BARE_TYPES = ("resize", "mail:send", ":", "not-a-uuid:resize", "été {x}")


class HubNoticesTests:
    """Each notice reaches the listeners that it concerns, and no others."""

    @driver_test
    async def test_an_announcement_carries_its_type_and_its_hint(self, stage: Stage) -> None:
        announcer, worker = await stage.actors(2)
        subscription = await listen(worker, "scheduled", ["resize"])
        hint = await announce(announcer, "scheduled", "resize", 2)
        assert await subscription.receive() == {"type": "resize", "hint_id": hint, "missed": False}

    @driver_test
    async def test_a_worker_is_notified_of_its_own_types_only(self, stage: Stage) -> None:
        announcer, worker, other, anybody = await stage.actors(4)
        subscription = await listen(worker, "scheduled", ["resize", "a:b:c"])
        single, every = await listen(other, "scheduled", "mail"), await listen(anybody, "scheduled")
        for job_type in ("resize", "unknown", "mail", "a:b:c", "a"):
            await announce(announcer, "scheduled", job_type)
        assert {(await subscription.receive())["type"] for _ in range(2)} == {"resize", "a:b:c"}
        assert (await single.receive())["type"] == "mail"
        assert {(await every.receive())["type"] for _ in range(5)} == {"resize", "unknown", "mail", "a:b:c", "a"}
        assert await subscription.receives_nothing()

    @driver_test
    async def test_names_with_colons_and_unicode_survive(self, stage: Stage) -> None:
        announcer, worker = await stage.actors(2)
        names = ["a:b", "::", "été:{x}", "日本語", "with space"]
        subscription = await listen(worker, "scheduled", names)
        for name in names:
            await announce(announcer, "scheduled", name)
        assert {(await subscription.receive())["type"] for _ in names} == set(names)

    @driver_test
    async def test_an_announcement_without_a_hint_id_is_counted_by_its_type(self, stage: Stage) -> None:
        stranger, worker = await stage.actors(2)
        subscription = await listen(worker, "scheduled", list(BARE_TYPES))
        for payload in ("other", *BARE_TYPES):
            await publish(stranger, "sched", payload)
        for name in BARE_TYPES:
            assert await subscription.receive() == {"type": name, "hint_id": name, "missed": False}
            assert await worker.do("take_hint", hint_id=name, n=3) == 3  # it has no counter

    @driver_test
    async def test_a_chains_end_reaches_its_listeners(self, stage: Stage) -> None:
        announcer, waiter, other = await stage.actors(3)
        subscription, elsewhere = (
            await listen(waiter, "chain_completed", "c:1"),
            await listen(other, "chain_completed", "c:2"),
        )
        await announce(announcer, "chain_completed", "c:1")
        assert await subscription.receive() == {"id": "c:1", "missed": False}
        assert await elsewhere.receives_nothing()

    @driver_test
    async def test_lost_ownership_reaches_the_worker_of_that_job(self, stage: Stage) -> None:
        announcer, worker, other = await stage.actors(3)
        subscription, elsewhere = (
            await listen(worker, "ownership_lost", "j1"),
            await listen(other, "ownership_lost", "j2"),
        )
        await announce(announcer, "ownership_lost", "j1")
        assert await subscription.receive() == {"job_id": "j1", "missed": False}
        assert await elsewhere.receives_nothing()

    @driver_test
    async def test_malformed_messages_are_skipped(self, stage: Stage) -> None:
        stranger, announcer, worker = await stage.actors(3)
        subscription = await listen(worker, "scheduled")
        chain = await listen(worker, "chain_completed", "c1")
        for payload in RUBBISH:
            for channel in ("sched", "chainc", "owls"):
                await publish(stranger, channel, payload)
        await announce(announcer, "scheduled", "resize")
        await announce(announcer, "chain_completed", "c1")
        assert (await subscription.receive())["type"] == "resize"
        assert (await chain.receive())["id"] == "c1"

        async def all_counted() -> bool:
            return bool((await worker.do("hub_counts")).get("hub.malformed", 0) >= len(RUBBISH))

        assert await soon(all_counted)
