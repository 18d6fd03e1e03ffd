"""Operations as conversations: requests out, replies in, the operation's answer at the end. No I/O here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from backstay.engine.base import (
    UNREADABLE,
    Apply,
    Micros,
    Op,
    Ping,
    Publish,
    PublishHint,
    Read,
    Reading,
    Recall,
    Room,
    Scan,
    Tag,
    Tagged,
    TakeHint,
    Untag,
    Within,
)
from backstay.engine.redis import keys, scripts
from backstay.engine.redis.link.protocol import Refusal, pack


def good(reply: Any) -> Any:
    """The reply; a refusal is raised."""
    if isinstance(reply, Refusal):
        raise reply
    return reply


class To(NamedTuple):
    """A request about another key than the conversation's own: on a Cluster it may be another node's."""

    key: bytes
    request: bytes


class Ready(Within[Any], frozen=True):
    """A conversation that is one request in service: the hot path, without a generator. Where that is refused, `work`
    says it again and knows what to do.
    """

    #: None: there is more to say.
    request: Callable[[], bytes] | None = None
    read: Callable[[Any], Any] = good


#: Yields requests, is sent their replies, returns the answer. Raises Refusal.
Talk = Generator[bytes | To, Any, Any]
SCAN_COUNT = 1000


class Talks:
    """What an operation says to a server. All requests of one conversation are about one key, unless one says `To`."""

    def __init__(self, namespace: str, clock: Callable[[], Micros] | None) -> None:
        self._namespace = namespace
        self._clock = clock

    def request(self, op: Apply) -> bytes:
        """The hot path: a command in one go, without a conversation."""
        room, command = op.room, op.command
        script = scripts.of_command(room, type(command))
        if room.places is not None:
            return script.pack(*self._parts(room, op.name), room.encode(command))
        key = keys.wire_state(self._namespace, room.name, op.name)
        if room.bodies:
            return script.call_beside(key, keys.wire_body(self._namespace, room.name, op.name), room.wire(command))
        return script.call(key, room.encode(command))

    def _parts(self, room: Room[Any], name: str) -> list[bytes]:
        """The keys of a name."""
        if room.places is not None:
            return [key.encode() for key in room.places(self._namespace, name)]
        parts = [keys.wire_state(self._namespace, room.name, name)]
        if room.bodies:
            parts.append(keys.wire_body(self._namespace, room.name, name))
        return parts

    def key(self, op: Op[Any]) -> bytes | None:
        """The key that an operation is about; None: any server will do."""
        match op:
            case Apply() if op.room.places is not None:
                return self._parts(op.room, op.name)[0]
            case Apply() | Read() | Recall():
                return keys.wire_state(self._namespace, op.room.name, op.name)
            case Tag() | Tagged() | Untag():
                return keys.tag(self._namespace, op.room.name, op.tag).encode()
            case PublishHint() | TakeHint():
                return op.hint.encode()
            case Within():
                return op.key.encode()
            case _:
                return None

    def of(self, op: Op[Any]) -> Talk:
        match op:
            case Apply():
                return self._apply(op)
            case Within():
                return self._within(op)
            case Read():
                return self._read(op)
            case Recall():
                return self._ask(self.recall(op))
            case Scan():
                return self._scan(op)
            case Tag():
                key = keys.tag(self._namespace, op.room.name, op.tag).encode()
                life = str(-(-op.ttl // 1000)).encode()
                return self._run(scripts.own("tag"), key, op.name.encode(), life)
            case Tagged():
                return self._tagged(op)
            case Untag():
                return self._plain("SREM", keys.tag(self._namespace, op.room.name, op.tag), *op.names)
            case Publish():
                return self._plain("PUBLISH", op.channel, op.payload)
            case PublishHint():
                return self._publish_hint(op)
            case TakeHint():
                args = (str(op.n).encode(), str(op.life // 1000).encode())
                return self._run(scripts.of_hub("hint_take"), op.hint.encode(), *args)
            case Ping():
                return self._ping()
            case _:
                raise TypeError(f"not an operation for Redis: {op!r}")

    def _within(self, op: Within[Any]) -> Talk:
        """`work(clock)` is a conversation of its own. `clock`: a test clock's time in µs, as scripts take it; empty in
        service.
        """
        talk: Talk = op.work(str(self._clock()).encode() if self._clock is not None else b"")
        return talk

    def _run(self, script: scripts.Script, *parts: bytes) -> Talk:
        reply = yield script.pack(*parts)
        if isinstance(reply, Refusal) and reply.code == "NOSCRIPT":
            reply = yield script.pack(*parts, whole=True)
        return good(reply)

    def _clock_args(self) -> tuple[bytes, ...]:
        return (str(self._clock()).encode(),) if self._clock is not None else ()

    def _apply(self, op: Apply) -> Talk:
        room = op.room
        parts = self._parts(room, op.name)
        script = scripts.of_command(room, type(op.command))
        reply = yield from self._run(script, *parts, room.wire(op.command), *self._clock_args())
        try:
            return room.decode_reply(reply)
        except UNREADABLE as error:
            raise room.unreadable(op.name, error) from error

    def _read(self, op: Read) -> Talk:
        key = keys.wire_state(self._namespace, op.room.name, op.name)
        seconds, micros, raw = yield from self._run(scripts.own("read"), key, b"", *self._clock_args())
        now = int(seconds) * 1_000_000 + int(micros)
        return Reading(now, op.room.decode_state(op.name, raw) if raw is not None else None)

    def recall(self, op: Recall) -> bytes:
        """A plain GET."""
        key = keys.wire_body(self._namespace, op.room.name, op.name)
        return b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(key), key)

    def _ask(self, request: bytes) -> Talk:
        return good((yield request))

    def _scan(self, op: Scan) -> Talk:
        found: set[str] = set()
        pattern = keys.pattern(self._namespace, op.room.name, op.prefix)
        cursor = b"0"
        while True:
            reply = yield pack("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
            cursor, page = good(reply)
            for key in page:
                with contextlib.suppress(UnicodeDecodeError):  # a stranger's: no name of ours is written so
                    found.add(keys.name_of(self._namespace, op.room.name, key.decode()))
            if int(cursor) == 0:
                return sorted(found)

    def _tagged(self, op: Tagged) -> Talk:
        reply = yield pack("SMEMBERS", keys.tag(self._namespace, op.room.name, op.tag))
        return sorted(name.decode() for name in good(reply))

    def _plain(self, *command: str) -> Talk:
        good((yield pack(*command)))
        return None

    def _publish_hint(self, op: PublishHint) -> Talk:
        args = (str(op.count), str(op.life // 1000), op.channel, op.payload)
        script = scripts.of_hub("hint_publish")
        yield from self._run(script, op.hint.encode(), *(arg.encode() for arg in args))

    def _ping(self) -> Talk:
        seconds, micros = good((yield pack("TIME")))
        return int(seconds) * 1_000_000 + int(micros)
