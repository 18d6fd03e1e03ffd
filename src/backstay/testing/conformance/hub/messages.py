"""Channels by name: which messages a listener receives."""

from __future__ import annotations

from backstay.testing.conformance.actor import refused
from backstay.testing.conformance.driver import Stage, claim
from backstay.testing.conformance.hub.cases import announce, listen, publish
from backstay.testing.waiting import soon

ODD = ("", "b: {}\né", "a:b:c", "x\x00y", "€" * 2000)


class Messages:
    """Tests of `publish` and `listen`."""

    @claim
    async def test_a_message_reaches_every_listener_in_order(self, stage: Stage) -> None:
        speaker, one, two, three = await stage.actors(4)
        ears = [await listen(actor, "", "news") for actor in (speaker, one, two, three)]
        for i in range(20):
            await publish(speaker, "news", str(i))
        for ear in ears:
            heard = [await ear.hear() for _ in range(20)]
            assert heard == [{"channel": "news", "payload": str(i), "missed": False} for i in range(20)]

    @claim
    async def test_any_text_arrives_as_it_was_sent(self, stage: Stage) -> None:
        speaker, other = await stage.actors(2)
        ear = await listen(other, "", "odd {names}: é")
        for payload in ODD:
            await publish(speaker, "odd {names}: é", payload)
        assert [(await ear.hear())["payload"] for _ in ODD] == list(ODD)

    @claim
    async def test_one_listener_receives_several_channels(self, stage: Stage) -> None:
        speaker, other = await stage.actors(2)
        ear = await listen(other, "", "news", "weather")
        for channel in ("news", "weather", "sport"):
            await publish(speaker, channel, channel)
        assert [(await ear.hear())["channel"] for _ in range(2)] == ["news", "weather"]
        assert await ear.hears_nothing()

    @claim
    async def test_a_listener_receives_only_inside_its_block(self, stage: Stage) -> None:
        """A listener may still receive a message that was in flight when it subscribed. A later message on a second
        channel shows that the first has been delivered.
        """
        speaker, other, third = await stage.actors(3)
        marks = [await listen(actor, "", "marks") for actor in (other, third)]

        async def passed(payload: str) -> None:
            await publish(speaker, "news", payload)
            await publish(speaker, "marks", payload)
            for mark in marks:
                assert (await mark.hear())["payload"] == payload

        await passed("too early")
        ear = await listen(other, "", "news")
        await publish(speaker, "news", "now")
        assert (await ear.hear())["payload"] == "now"
        await ear.leave()
        await passed("too late")
        again, peer = await listen(other, "", "news"), await listen(third, "", "news")
        await publish(speaker, "news", "again")
        assert (await again.hear())["payload"] == "again"
        assert (await peer.hear())["payload"] == "again"

    @claim
    async def test_a_listener_that_never_reads_delays_no_other_and_gets_missed(self, stage: Stage) -> None:
        speaker, lazy, keen = await stage.actors(3)
        unread, read = await listen(lazy, "", "news"), await listen(keen, "", "news")
        for i in range(1100):
            await publish(speaker, "news", str(i))
            assert (await read.hear())["payload"] == str(i)
        first = await unread.hear()
        assert first["missed"]

    @claim
    async def test_the_last_to_leave_ends_the_subscription(self, stage: Stage) -> None:
        (actor,) = await stage.actors(1)
        ears = [await listen(actor, "", "news") for _ in range(5)]
        states: dict[str, str] = await actor.do("hub_states")
        assert [state for channel, state in states.items() if channel.endswith(":news")] == ["running"]
        for ear in ears:
            await ear.leave()

        async def nothing() -> bool:
            return not [c for c in await actor.do("hub_states") if c.endswith(":news")]

        assert await soon(nothing)

    @claim
    async def test_traffic_is_counted(self, stage: Stage) -> None:
        (actor,) = await stage.actors(1)
        one, two = await listen(actor, "", "news"), await listen(actor, "", "news")
        await publish(actor, "news", "x")
        await one.hear()
        await two.hear()
        counts = await actor.do("hub_counts")
        assert counts["hub.published"] == 1
        assert counts["hub.received"] == 1, "one message, however many listen"
        assert counts["hub.listener"] == 2, "starting, running"

    @claim
    async def test_what_cannot_be_sent_is_refused(self, stage: Stage) -> None:
        (actor,) = await stage.actors(1)
        for channel, payload in (("", "x"), ("c" * 513, "x"), (7, "x"), ("news", 7), ("news", "x" * 7001)):
            await refused(publish(actor, channel, payload), "ConfigError")
        for args in (("",), ("x", 0), ("x", -1), ("x", "2"), ("t" * 513,)):
            await refused(announce(actor, "scheduled", *args), "ConfigError")
        for what in ("chain_completed", "ownership_lost"):
            await refused(announce(actor, what, ""), "ConfigError")
            await refused(listen(actor, what, ""), "ConfigError")
        await refused(listen(actor, "scheduled", []), "ConfigError")
