"""How many replicas have a command: it travels with its WAIT, over a link that nobody else uses.

WAIT holds up everything behind it on its connection and counts what was written on that very connection. So each
thread that asks has a second link, apart from the one on which its other commands go.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from holdfast.engine.base import Apply
from holdfast.engine.redis import keys, scripts
from holdfast.engine.redis.blocking_link import BlockingLink
from holdfast.engine.redis.link import Refusal, pack, refused
from holdfast.errors import OutcomeUnknown


class RedisWitness:
    """Asks a server how many of its replicas have what it was just told."""

    def __init__(self, namespace: str, dial: Callable[[], BlockingLink]) -> None:
        self._namespace = namespace
        self._dial = dial
        self._threads = threading.local()

    def confirm(self, op: Apply, replicas: int, within: float) -> tuple[Any, int]:
        """Carry out a natural command; its reply, and how many replicas have it. Answers when `replicas` of them do
        or the time is over.
        """
        used: BlockingLink | None = getattr(self._threads, "link", None)
        if used is not None and used.ready:
            try:
                return self._ask(used, op, replicas, within)
            except OutcomeUnknown as error:
                if isinstance(error.__cause__, (TimeoutError, BlockingIOError)):
                    raise  # silence; a new link would hear the same
                # The server hung up, perhaps because the link was idle for long: a new one tells.
        link = self._threads.link = self._dial()
        return self._ask(link, op, replicas, within)

    def _ask(self, link: BlockingLink, op: Apply, replicas: int, within: float) -> tuple[Any, int]:
        room = op.room
        key = keys.wire_state(self._namespace, room.name, op.name)
        script = scripts.of_command(room, type(op.command))
        args = (room.encode(op.command),)
        # Milliseconds, and never 0, which means: for ever.
        wait = pack("WAIT", replicas, max(1, round(within * 1000)))
        patience = link.address.timeout + within
        replies = link.call_many([script.pack(key, *args), wait], patience)
        if isinstance(replies[0], Refusal) and replies[0].code == "NOSCRIPT":  # so WAIT had nothing to wait for
            replies = link.call_many([script.pack(key, *args, whole=True), wait], patience)
        for reply in replies:
            if isinstance(reply, Refusal):
                link.close()  # the next one may reach another server, or find other rights
                raise refused(reply, link.address)
        raw, confirmed = replies
        return room.decode_reply(raw), int(confirmed)
