"""How many replicas have a command: it travels with its WAIT, over a link that nobody else uses.

WAIT holds up everything behind it on its connection and counts what was written on that very connection. So each
thread that asks has a second link, apart from the one on which its other commands go.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from backstay.engine.base import UNREADABLE, Apply
from backstay.engine.redis import keys, scripts
from backstay.engine.redis.address import Place
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import ASKING, Refusal, pack, refused
from backstay.errors import OutcomeUnknown


class Testimony(NamedTuple):
    """What a server said to the command and to its WAIT, and on which link."""

    link: BlockingLink
    raw: Any
    confirmed: Any


class RedisWitness:
    """Asks a server how many of its replicas have what it was just told."""

    def __init__(self, namespace: str, dial: Callable[[Place | None], BlockingLink]) -> None:
        """`dial` makes a second link: to a place, or (None) to wherever the engine goes."""
        self._namespace = namespace
        self._dial = dial
        self._threads = threading.local()

    def confirm(self, op: Apply, replicas: int, within: float) -> tuple[Any, int]:
        """Carry out a natural command; its reply, and how many replicas have it. Answers when `replicas` of them do
        or the time is over.
        """
        return self._judge(op, self._ask(None, op, replicas, within))

    def _ask(self, place: Place | None, op: Apply, replicas: int, within: float, *, asking: bool = False) -> Testimony:
        links: dict[Place | None, BlockingLink] | None = getattr(self._threads, "links", None)
        if links is None:
            links = self._threads.links = {}
        used = links.get(place)
        if used is not None and used.ready:
            try:
                return self._say(used, op, replicas, within, asking)
            except OutcomeUnknown as error:
                if isinstance(error.__cause__, (TimeoutError, BlockingIOError)):
                    raise  # silence; a new link would hear the same
                # The server hung up, perhaps because the link was idle for long: a new one tells.
        link = links[place] = self._dial(place)
        return self._say(link, op, replicas, within, asking)

    def _say(self, link: BlockingLink, op: Apply, replicas: int, within: float, asking: bool) -> Testimony:
        key = keys.wire_state(self._namespace, op.room.name, op.name)
        script = scripts.of_command(op.room, type(op.command))
        args = (op.room.encode(op.command),)
        before = [ASKING] if asking else []
        # Milliseconds, and never 0, which means: for ever.
        wait = pack("WAIT", replicas, max(1, round(within * 1000)))
        patience = link.address.timeout + within
        raw, confirmed = link.call_many([*before, script.pack(key, *args), wait], patience)[-2:]
        if isinstance(raw, Refusal) and raw.code == "NOSCRIPT":  # so WAIT had nothing to wait for
            raw, confirmed = link.call_many([*before, script.pack(key, *args, whole=True), wait], patience)[-2:]
        return Testimony(link, raw, confirmed)

    def _judge(self, op: Apply, told: Testimony) -> tuple[Any, int]:
        for reply in (told.raw, told.confirmed):
            if isinstance(reply, Refusal):
                told.link.close()  # the next one may reach another server, or find other rights
                raise refused(reply, told.link.address)
        try:
            return op.room.decode_reply(told.raw), int(told.confirmed)
        except UNREADABLE as error:
            raise op.room.unreadable(op.name, error) from error
