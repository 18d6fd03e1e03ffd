"""Count the replicas that have acknowledged a command: the command and its WAIT are sent over a separate link.

WAIT blocks all later commands on its connection and counts only writes of the same connection. So each thread has a
second link for it, beside the one for its other commands.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from backstay.engine.base import DECODE_ERRORS, Apply
from backstay.engine.redis import keys, scripts
from backstay.engine.redis.address import HostPort
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import ASKING, ErrorReply, pack, translate_error
from backstay.errors import OutcomeUnknown


class AckedReply(NamedTuple):
    """The replies to a command and to its WAIT, and the link they came from."""

    link: BlockingLink
    raw: Any
    acks: Any


class RedisReplicaAcks:
    """Sends a command and asks how many replicas have acknowledged it. Thread-safe: each thread has its own links."""

    def __init__(self, namespace: str, connect: Callable[[HostPort | None], BlockingLink]) -> None:
        """`connect(node)` opens a link to that node; `connect(None)` opens one to the server that the engine uses."""
        self._namespace = namespace
        self._connect = connect
        self._threads = threading.local()

    def confirm(self, op: Apply, replicas: int, within: float) -> tuple[Any, int]:
        """Run an idempotent command; return its reply and how many replicas have acknowledged it, after `within`
        seconds or as soon as `replicas` of them have.
        """
        return self._decode(op, self._call(None, op, replicas, within))

    def _call(
        self, place: HostPort | None, op: Apply, replicas: int, within: float, *, asking: bool = False
    ) -> AckedReply:
        links: dict[HostPort | None, BlockingLink] | None = getattr(self._threads, "links", None)
        if links is None:
            links = self._threads.links = {}
        used = links.get(place)
        if used is not None and used.ready:
            try:
                return self._call_on(used, op, replicas, within, asking)
            except OutcomeUnknown as error:
                if isinstance(error.__cause__, (TimeoutError, BlockingIOError)):
                    raise  # a time-out: on a new link the command would time out again
                # The server closed the link, perhaps because it was idle. Retry on a new link: the command is
                # idempotent.
        link = links[place] = self._connect(place)
        return self._call_on(link, op, replicas, within, asking)

    def _call_on(self, link: BlockingLink, op: Apply, replicas: int, within: float, asking: bool) -> AckedReply:
        key = keys.wire_state(self._namespace, op.room.name, op.name)
        script = scripts.command_script(op.room, type(op.command))
        args = (op.room.encode(op.command),)
        before = [ASKING] if asking else []
        # Milliseconds, at least 1: 0 means to wait forever.
        wait = pack("WAIT", replicas, max(1, round(within * 1000)))
        patience = link.address.timeout + within
        raw, acks = link.call_many([*before, script.pack(key, *args), wait], patience)[-2:]
        if isinstance(raw, ErrorReply) and raw.code == "NOSCRIPT":  # the command did not run: resend it
            raw, acks = link.call_many([*before, script.pack(key, *args, whole=True), wait], patience)[-2:]
        return AckedReply(link, raw, acks)

    def _decode(self, op: Apply, acked: AckedReply) -> tuple[Any, int]:
        for reply in (acked.raw, acked.acks):
            if isinstance(reply, ErrorReply):
                acked.link.close()  # the next link may reach another server, or the rights may have changed
                raise translate_error(reply, acked.link.address)
        try:
            return op.room.decode_reply(acked.raw), int(acked.acks)
        except DECODE_ERRORS as error:
            raise op.room.corrupt_record(op.name, error) from error
