"""Encode operations as Redis requests and decode their replies. No I/O happens here.

A procedure is a generator: it yields requests, is sent their replies, and returns the operation's result.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from backstay.engine.base import (
    DECODE_ERRORS,
    Apply,
    ListTagged,
    Micros,
    Op,
    Ping,
    Publish,
    PublishHint,
    Read,
    ReadBody,
    Reading,
    Room,
    Scan,
    StoreOperation,
    Tag,
    TakeHint,
    Untag,
)
from backstay.engine.redis import keys, scripts
from backstay.engine.redis.link.protocol import ErrorReply, pack


def reply_or_raise(reply: Any) -> Any:
    """Return a reply of the server. An error reply (`ErrorReply`) is raised instead."""
    if isinstance(reply, ErrorReply):
        raise reply
    return reply


class KeyedRequest(NamedTuple):
    """A request of a procedure that uses another key than the operation's: on a Cluster it is sent to the node that
    serves the slot of `key`.
    """

    key: bytes
    request: bytes


class SingleRequest(StoreOperation[Any], frozen=True):
    """A store operation that normally needs one request. The engine then sends it without a procedure, whose generator
    costs time: `request` builds the request, and `read` converts its reply. With a test clock, or if the server returns
    an error (NOSCRIPT, for example), the engine runs the procedure `work` instead.
    """

    #: Builds the request; None if the operation needs more than one.
    request: Callable[[], bytes] | None = None
    read: Callable[[Any], Any] = reply_or_raise


#: Yields requests, is sent their replies, returns the result. Raises ErrorReply.
Procedure = Generator[bytes | KeyedRequest, Any, Any]
SCAN_COUNT = 1000


class Encoder:
    """Builds the requests of operations. All requests of one procedure go to the node of the operation's key (see
    `key`), except a `KeyedRequest`.
    """

    def __init__(self, namespace: str, clock: Callable[[], Micros] | None) -> None:
        self._namespace = namespace
        self._clock = clock

    def request(self, op: Apply) -> bytes:
        """Encode a command of a lock, limit or idempotency key as one request. This is the fast path; `procedure` does
        the same with a generator, which costs time.
        """
        room, command = op.room, op.command
        script = scripts.command_script(room, type(command))
        if room.build_keys is not None:
            return script.pack(*self._keys(room, op.name), room.encode(command))
        key = keys.wire_state(self._namespace, room.name, op.name)
        if room.has_bodies:
            return script.call_with_body(
                key, keys.wire_body(self._namespace, room.name, op.name), room.encode_command(command)
            )
        return script.call(key, room.encode(command))

    def _keys(self, room: Room[Any], name: str) -> list[bytes]:
        """Return the Redis keys that store the state of one name, such as the name of a lock."""
        if room.build_keys is not None:
            return [key.encode() for key in room.build_keys(self._namespace, name)]
        found = [keys.wire_state(self._namespace, room.name, name)]
        if room.has_bodies:
            found.append(keys.wire_body(self._namespace, room.name, name))
        return found

    def key(self, op: Op[Any]) -> bytes | None:
        """Return the key whose slot determines the Cluster node of an operation; None if any node can run it."""
        match op:
            case Apply() if op.room.build_keys is not None:
                return self._keys(op.room, op.name)[0]
            case Apply() | Read() | ReadBody():
                return keys.wire_state(self._namespace, op.room.name, op.name)
            case Tag() | ListTagged() | Untag():
                return keys.tag(self._namespace, op.room.name, op.tag).encode()
            case PublishHint() | TakeHint():
                return op.hint.encode()
            case StoreOperation():
                return op.key.encode()
            case _:
                return None

    def procedure(self, op: Op[Any]) -> Procedure:
        """Return the procedure that runs an operation."""
        match op:
            case Apply():
                return self._apply(op)
            case StoreOperation():
                return self._store_operation(op)
            case Read():
                return self._read(op)
            case ReadBody():
                return self._send_one(self.read_body_request(op))
            case Scan():
                return self._scan(op)
            case Tag():
                key = keys.tag(self._namespace, op.room.name, op.tag).encode()
                life = str(-(-op.ttl // 1000)).encode()
                return self._run(scripts.engine_script("tag"), key, op.name.encode(), life)
            case ListTagged():
                return self._list_tagged(op)
            case Untag():
                return self._run_command("SREM", keys.tag(self._namespace, op.room.name, op.tag), *op.names)
            case Publish():
                return self._run_command("PUBLISH", op.channel, op.payload)
            case PublishHint():
                return self._publish_hint(op)
            case TakeHint():
                args = (str(op.n).encode(), str(op.life // 1000).encode())
                return self._run(scripts.hub_script("hint_take"), op.hint.encode(), *args)
            case Ping():
                return self._ping()
            case _:
                raise TypeError(f"not an operation for Redis: {op!r}")

    def _store_operation(self, op: StoreOperation[Any]) -> Procedure:
        """Return the procedure of a store operation: the generator that `op.work(clock)` returns. `clock` is the time
        of the test clock in µs, as decimal digits; empty without a test clock.
        """
        procedure: Procedure = op.work(str(self._clock()).encode() if self._clock is not None else b"")
        return procedure

    def _run(self, script: scripts.Script, *parts: bytes) -> Procedure:
        reply = yield script.pack(*parts)
        if isinstance(reply, ErrorReply) and reply.code == "NOSCRIPT":
            reply = yield script.pack(*parts, whole=True)
        return reply_or_raise(reply)

    def _clock_args(self) -> tuple[bytes, ...]:
        return (str(self._clock()).encode(),) if self._clock is not None else ()

    def _apply(self, op: Apply) -> Procedure:
        room = op.room
        found = self._keys(room, op.name)
        script = scripts.command_script(room, type(op.command))
        reply = yield from self._run(script, *found, room.encode_command(op.command), *self._clock_args())
        try:
            return room.decode_reply(reply)
        except DECODE_ERRORS as error:
            raise room.corrupt_record(op.name, error) from error

    def _read(self, op: Read) -> Procedure:
        key = keys.wire_state(self._namespace, op.room.name, op.name)
        seconds, micros, raw = yield from self._run(scripts.engine_script("read"), key, b"", *self._clock_args())
        now = int(seconds) * 1_000_000 + int(micros)
        return Reading(now, op.room.decode_state(op.name, raw) if raw is not None else None)

    def read_body_request(self, op: ReadBody) -> bytes:
        """Encode the request that reads the value stored in a name's second key, such as the outcome of an idempotency
        key.
        """
        key = keys.wire_body(self._namespace, op.room.name, op.name)
        return b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(key), key)

    def _send_one(self, request: bytes) -> Procedure:
        return reply_or_raise((yield request))

    def _scan(self, op: Scan) -> Procedure:
        found: set[str] = set()
        pattern = keys.pattern(self._namespace, op.room.name, op.prefix)
        cursor = b"0"
        while True:
            reply = yield pack("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
            cursor, page = reply_or_raise(reply)
            for key in page:
                with contextlib.suppress(UnicodeDecodeError):  # another program's key: ours are UTF-8
                    found.add(keys.name_of(self._namespace, op.room.name, key.decode()))
            if int(cursor) == 0:
                return sorted(found)

    def _list_tagged(self, op: ListTagged) -> Procedure:
        reply = yield pack("SMEMBERS", keys.tag(self._namespace, op.room.name, op.tag))
        return sorted(name.decode() for name in reply_or_raise(reply))

    def _run_command(self, *command: str) -> Procedure:
        reply_or_raise((yield pack(*command)))
        return None

    def _publish_hint(self, op: PublishHint) -> Procedure:
        args = (str(op.count), str(op.life // 1000), op.channel, op.payload)
        script = scripts.hub_script("hint_publish")
        yield from self._run(script, op.hint.encode(), *(arg.encode() for arg in args))

    def _ping(self) -> Procedure:
        seconds, micros = reply_or_raise((yield pack("TIME")))
        return int(seconds) * 1_000_000 + int(micros)
