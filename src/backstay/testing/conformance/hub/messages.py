"""`publish` and `listen` on named channels: which messages a listener receives."""

from __future__ import annotations

from backstay.testing.conformance.actor import assert_refused
from backstay.testing.conformance.driver import Stage, driver_test
from backstay.testing.conformance.hub.cases import announce, listen, publish
from backstay.testing.waiting import soon

ODD = ("", "b: {}\né", "a:b:c", "x\x00y", "€" * 2000)


class HubMessagesTests:
    """Tests of `publish` and `listen`."""

    @driver_test
    async def test_a_message_reaches_every_listener_in_order(self, stage: Stage) -> None:
        speaker, one, two, three = await stage.actors(4)
        subscriptions = [await listen(actor, "", "news") for actor in (speaker, one, two, three)]
        for i in range(20):
            await publish(speaker, "news", str(i))
        for subscription in subscriptions:
            heard = [await subscription.receive() for _ in range(20)]
            assert heard == [{"channel": "news", "payload": str(i), "missed": False} for i in range(20)]

    @driver_test
    async def test_any_text_arrives_as_it_was_sent(self, stage: Stage) -> None:
        speaker, other = await stage.actors(2)
        subscription = await listen(other, "", "odd {names}: é")
        for payload in ODD:
            await publish(speaker, "odd {names}: é", payload)
        assert [(await subscription.receive())["payload"] for _ in ODD] == list(ODD)

    @driver_test
    async def test_one_listener_receives_several_channels(self, stage: Stage) -> None:
        speaker, other = await stage.actors(2)
        subscription = await listen(other, "", "news", "weather")
        for channel in ("news", "weather", "sport"):
            await publish(speaker, channel, channel)
        assert [(await subscription.receive())["channel"] for _ in range(2)] == ["news", "weather"]
        assert await subscription.receives_nothing()

    @driver_test
    async def test_a_listener_receives_only_inside_its_block(self, stage: Stage) -> None:
        """A message that is published before the block, or after it, is not received.

        A message on "news" could still be on its way when the block begins. Therefore the test publishes another
        message after it, on "marks", and waits for that one. Messages arrive in the order in which they were published,
        so by then the message on "news" is no longer on its way.
        """
        speaker, other, third = await stage.actors(3)
        marks = [await listen(actor, "", "marks") for actor in (other, third)]

        async def passed(payload: str) -> None:
            await publish(speaker, "news", payload)
            await publish(speaker, "marks", payload)
            for mark in marks:
                assert (await mark.receive())["payload"] == payload

        await passed("too early")
        subscription = await listen(other, "", "news")
        await publish(speaker, "news", "now")
        assert (await subscription.receive())["payload"] == "now"
        await subscription.unsubscribe()
        await passed("too late")
        again, peer = await listen(other, "", "news"), await listen(third, "", "news")
        await publish(speaker, "news", "again")
        assert (await again.receive())["payload"] == "again"
        assert (await peer.receive())["payload"] == "again"

    @driver_test
    async def test_a_listener_that_never_reads_delays_no_other_and_gets_missed(self, stage: Stage) -> None:
        speaker, lazy, keen = await stage.actors(3)
        unread, read = await listen(lazy, "", "news"), await listen(keen, "", "news")
        beside = await listen(lazy, "", "news")
        for i in range(1100):
            await publish(speaker, "news", str(i))
            assert (await read.receive())["payload"] == str(i)
            assert (await beside.receive())["payload"] == str(i)
        first = await unread.receive()
        assert first["missed"]

    @driver_test
    async def test_the_last_to_leave_ends_the_subscription(self, stage: Stage) -> None:
        (actor,) = await stage.actors(1)
        subscriptions = [await listen(actor, "", "news") for _ in range(5)]
        states: dict[str, str] = await actor.do("hub_states")
        assert [state for channel, state in states.items() if channel.endswith(":news")] == ["running"]
        for subscription in subscriptions:
            await subscription.unsubscribe()

        async def nothing() -> bool:
            return not [c for c in await actor.do("hub_states") if c.endswith(":news")]

        assert await soon(nothing)

    @driver_test
    async def test_traffic_is_counted(self, stage: Stage) -> None:
        (actor,) = await stage.actors(1)
        one, two = await listen(actor, "", "news"), await listen(actor, "", "news")
        await publish(actor, "news", "x")
        await one.receive()
        await two.receive()
        counts = await actor.do("hub_counts")
        assert counts["hub.published"] == 1
        assert counts["hub.received"] == 1, "one message, however many listen"
        assert counts["hub.listener"] == 2, "starting, running"

    @driver_test
    async def test_invalid_channels_and_payloads_are_refused(self, stage: Stage) -> None:
        (actor,) = await stage.actors(1)
        for channel, payload in (("", "x"), ("c" * 513, "x"), (7, "x"), ("news", 7), ("news", "x" * 7001)):
            await assert_refused(publish(actor, channel, payload), "ConfigError")
        for args in (("",), ("x", 0), ("x", -1), ("x", "2"), ("t" * 513,)):
            await assert_refused(announce(actor, "scheduled", *args), "ConfigError")
        for what in ("chain_completed", "ownership_lost"):
            await assert_refused(announce(actor, what, ""), "ConfigError")
            await assert_refused(listen(actor, what, ""), "ConfigError")
        await assert_refused(listen(actor, "scheduled", []), "ConfigError")
