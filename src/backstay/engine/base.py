"""The engine contract: an engine stores state and runs operations, each atomically, on its own clock.

An operation (`Op`) is a request as plain data. So the event loop, the threads of the blocking API and the keeper's
thread can all pass it to an engine in the same way.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec

from backstay.engine.capabilities import ReplicaAcks, ThreadSubscribers
from backstay.errors import CorruptRecord

S = TypeVar("S", bound="Record")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

#: Microseconds since the epoch by the engine's clock. Below 2**53, so a Lua number holds it exactly.
Micros = int

#: This process's monotonic clock, in seconds. On Linux it stops while the host is suspended; an engine's does not.
steady = time.monotonic


class Wake(NamedTuple):
    """A hint that wakes a waiter of one process: a hub sends `payload` to that process's channel `inbox`. A hint may be
    lost, so every waiter also polls.
    """

    inbox: str
    payload: str


class Transition(NamedTuple, Generic[S]):
    """The result of a machine's function `step`: the next state to store in the name's record, the reply to the caller,
    the hints that wake waiters, and the time until which the engine must keep the record.
    """

    state: S | None
    reply: Any
    wakes: tuple[Wake, ...] = ()
    keep_until: Micros = 0
    #: False: nothing changed, so the engine writes nothing.
    write: bool = True
    #: The new body, a large value that the engine stores beside the record. Only for rooms with `has_bodies`. None: the
    #: stored body stays as it is.
    body: bytes | None = None
    #: True: the reply must contain the stored body. A machine never reads bodies, so the engine sets it.
    includes_body: bool = False


class Record(msgspec.Struct, frozen=True, array_like=True):
    """Base of all machine states, which engines store as records. `version`: the number of the stored format."""

    version: int


class Command(msgspec.Struct, frozen=True, array_like=True):
    """Base of all machine commands. After `not_after` (engine time) a command has no effect: a request that was delayed
    on an abandoned connection must not act after its caller has given up.
    """

    not_after: Micros

    #: Whether the command may free something that other callers wait for, such as a lock. The Redis engine then makes
    #: the server notify the waiters before it replies to the command's sender.
    wakes_waiters: ClassVar[bool] = False

    #: Whether the command renews a lease. The SQL engines run it before all commands that are queued: a lease that is
    #: renewed too late is lost.
    renews_lease: ClassVar[bool] = False


class Expired(msgspec.Struct, frozen=True, array_like=True, tag="expired"):
    """The command arrived after its `not_after` and did nothing. With `now` the client corrects its clock estimate."""

    now: Micros


#: The exceptions that msgspec raises for malformed bytes.
DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError)


class Room(Generic[S]):
    """A primitive that is defined by a machine, such as the gate, with what an engine needs to run it. The SQL engines
    call `step`, the machine's function. The Redis engine runs one Lua file per command from `package`.
    """

    def __init__(
        self,
        name: str,
        *,
        step: Callable[[S | None, Any, Micros], Transition[S]],
        state: type[S],
        version: int,
        replies: Any,
        package: str,
        has_bodies: bool = False,
        build_keys: Callable[[str, str], tuple[str, ...]] | None = None,
        keys: int = 1,
    ) -> None:
        self.name = name
        #: Builds the Redis keys of a record from the namespace and the name, if another program (n8n) defines their
        #: format. None: the engine builds them.
        self.build_keys = build_keys
        self.keys = 2 if has_bodies else keys
        #: Whether a record may have a body: a large value that is stored beside it and that the machine never reads.
        self.has_bodies = has_bodies
        self.version = version
        self.step = step
        self.package = package
        self._state = msgspec.msgpack.Decoder(state)
        self.decode_reply: Callable[[bytes], Any] = msgspec.msgpack.Decoder(replies).decode
        self.encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode

    def decode_state(self, name: str, raw: bytes) -> S:
        try:
            state = self._state.decode(raw)
        # TypeError: the stored value is not bytes. A SQLite column accepts values of any type.
        except (*DECODE_ERRORS, TypeError) as error:
            raise self.corrupt_record(name, error) from error
        if state.version != self.version:
            raise CorruptRecord(
                f"the {self.name} record {name!r} has format version {state.version}; this process reads {self.version}"
            )
        return state

    def corrupt_record(self, name: str, error: Exception) -> CorruptRecord:
        """Build the error for a stored record, or a script's reply with parts of one, that cannot be decoded."""
        return CorruptRecord(f"the {self.name} record {name!r} cannot be read: {error}")

    def encode_command(self, command: Command) -> bytes:
        """Encode a command for its Lua script. The body of a command (a large value, for example the outcome of a call)
        is bytes. Redis's Lua library for msgpack does not know the type for bytes, so the body gets the type for text
        (str32).
        """
        body = getattr(command, "body", None)
        if body is not None:
            command = msgspec.structs.replace(command, body=msgspec.Raw(b"\xdb" + len(body).to_bytes(4) + body))
        return self.encode(command)

    def complete_reply(self, name: str, transition: Transition[S], body: bytes | None) -> Any:
        """Return a transition's reply. If the transition has `includes_body`, the reply's field `body` gets the stored
        `body`.
        """
        if not transition.includes_body:
            return transition.reply
        if body is None:
            raise CorruptRecord(f"the {self.name} record {name!r} has lost its body")
        return msgspec.structs.replace(transition.reply, body=body)

    def script(self, command: type[Command]) -> str:
        """Return the Lua source of a command: the file named after it, with its includes expanded."""
        file = "".join("_" + c.lower() if c.isupper() else c for c in command.__name__).lstrip("_")
        return self._lua(f"{file}.lua")

    def _lua(self, file: str) -> str:
        for package in (self.package, "backstay.engine.redis"):
            found = files(package).joinpath("lua", file)
            if found.is_file():
                return re.sub(r"(?m)^-- include: (\S+)$", lambda m: self._lua(m[1]), found.read_text())
        raise FileNotFoundError(f"{self.package} has no {file}")


class Op(msgspec.Struct, Generic[T_co], frozen=True):
    """Base of all requests that an engine runs, such as `Apply` and `Read`. An `Op[T]` has a result of type T."""


class Apply(Op[Any], frozen=True, gc=False):
    """Run one machine command, atomically on its name."""

    room: Room[Any]
    name: str
    command: Command
    #: This operation as an encoded request, if `Engine.prepare` has built it; else empty.
    encoded: bytes = b""


class Reading(msgspec.Struct, Generic[S], frozen=True):
    """A stored state, and the engine's clock when it was read."""

    now: Micros
    state: S | None


class Read(Op[Reading[Any]], frozen=True):
    """Read the state of one name without changing it."""

    room: Room[Any]
    name: str


class ReadBody(Op[bytes | None], frozen=True, gc=False):
    """Read the body, the large value that is stored beside a record (the outcome of an idempotent call, say), but not
    the record. Only engines with `expires_bodies` support it.
    """

    room: Room[Any]
    name: str


class Scan(Op[list[str]], frozen=True):
    """List the stored names of a room that start with `prefix`, sorted. It reads all names: for admin tools only."""

    room: Room[Any]
    prefix: str = ""


class Tag(Op[None], frozen=True):
    """Give `name` the label `tag` for at least `ttl` µs. The label may outlive the record of the name. So `ListTagged`
    may also return names whose records no longer exist, but within `ttl` it misses no name.
    """

    room: Room[Any]
    tag: str
    name: str
    ttl: Micros


class ListTagged(Op[list[str]], frozen=True):
    """List the names that have the label `tag` (see `Tag`), sorted."""

    room: Room[Any]
    tag: str


class Untag(Op[None], frozen=True):
    """Remove the label `tag` (see `Tag`) from these names."""

    room: Room[Any]
    tag: str
    names: tuple[str, ...]


class Publish(Op[None], frozen=True):
    """Publish a hint on a channel, at most once: it is not sent again and delivery is not confirmed."""

    channel: str
    payload: str


class PublishHint(Op[None], frozen=True):
    """Announce `count` jobs: create the counter named `hint` with the value `count` and a TTL of `life` µs, and publish
    `payload` on `channel`. Both happen atomically, so a worker that receives the message finds the counter, from which
    it takes its share (`TakeHint`). Not idempotent: after a lost reply the operation is not sent again.
    """

    hint: str
    count: int
    life: Micros
    channel: str
    payload: str


class TakeHint(Op[int], frozen=True):
    """Take up to `n` from the counter `hint` (see `PublishHint`), atomically, and return how many were taken: 0 from a
    counter that is used up. If the counter is missing or has expired, the result is `n`, so that no job stays
    unclaimed. Never creates a counter, and never extends a TTL.
    """

    hint: str
    n: int
    #: The TTL (µs) for a counter that has none, because another program created it.
    life: Micros


class StoreOperation(Op[T_co], frozen=True):
    """An operation of a store that has its own tables or keys, such as the job store. The engine runs the function
    `work`, with arguments that differ by engine. `work` may raise only before its first write: the transaction may
    contain other operations, so it may be committed although `work` raised.
    """

    work: Callable[..., Any]
    #: Where the operation runs. On a Redis Cluster: on the node that serves the slot of this key; all keys that `work`
    #: uses are in that slot. On PostgreSQL: an operation with a key gets a transaction of its own.
    key: str = ""
    #: Whether the operation is read-only.
    reads: bool = False


class Ping(Op[Micros], frozen=True):
    """Reach the engine and return its clock."""


#: The operations that write nothing.
READS = (Read, Scan, ListTagged, Ping)


def single_result(results: list[Any]) -> Any:
    """Return the result of a batch of one operation, or raise its exception."""
    (result,) = results
    if isinstance(result, BaseException):
        raise result
    return result


class OperationRunner(Protocol):
    """Runs operations from the event loop and from threads: the part of an engine that a hub needs (`hub/base.py`)."""

    def submit(self, op: Op[T]) -> Awaitable[T]:
        """Run one operation from the event loop. All operations of one loop iteration travel as one batch."""
        ...

    def apply(self, op: Op[T]) -> T:
        """Run one operation from a thread."""
        ...

    def apply_many(self, ops: Sequence[Op[Any]], timeout: float | None = None) -> list[Any]:
        """Run operations from a thread in one round trip. Returns a result or an exception for each, in order; raises
        none. `timeout` (seconds) can only shorten the engine's own time-out.
        """
        ...

    async def close(self) -> None:
        """Close all connections and threads. Safe to call twice."""
        ...

    def close_blocking(self) -> None:
        """Do the same as `close` from a thread."""
        ...

    def after_fork(self) -> None:
        """In a forked child: drop inherited connections without closing them on the server."""
        ...


@runtime_checkable
class WakesAfterCommit(Protocol):
    """An engine that passes its hints for waiters (`Wake`) to a callback after each commit, so that any hub can deliver
    them. The Redis engine is not one: its scripts publish the hints themselves, so it always uses the Redis hub.
    """

    def attach(
        self,
        inbox: str,
        deliver: Callable[[Sequence[Wake]], None],
        forward: Callable[[Sequence[Wake]], None] | None = None,
    ) -> None:
        """After each commit, call `deliver` with its hints. `inbox` is the channel of this process: hints for it are
        not sent to other processes. The engine itself sends the hints for other processes; if `forward` is given, the
        engine calls `forward` with them instead. Neither callback may block.
        """
        ...

    def detach(self, inbox: str) -> None: ...


class Engine(OperationRunner, Protocol):
    """Runs operations on its own clock. Each operation is atomic; a batch is one round trip, not one transaction.
    Two operations on one name never interleave.
    """

    namespace: str
    #: Whether the engine deletes each body when it expires, so that a `ReadBody` never returns an expired one.
    expires_bodies: bool
    #: Whether other programs can reach the engine's records with Redis commands, as wire="n8n" requires.
    exposes_redis_keys: bool
    #: Whether keys are spread over several nodes by their hash tags.
    is_clustered: bool

    def prepare(self, op: Apply) -> Apply:
        """Return a copy of the operation that also contains its encoded request. A waiter prepares the operation while
        it waits, and sends it without further work when it is woken.
        """
        ...

    def key(self, room: str, name: str) -> str:
        """Return where a record is stored, as text for people: its Redis key, or the parts of its primary key."""
        ...

    def now(self) -> Micros:
        """Return this process's estimate of the engine's time. Callers compute deadlines with it; whether a lease has
        expired is decided by the engine with its own clock.
        """
        ...

    def correct_clock(self, now: Micros) -> None:
        """Correct the estimate of the engine's clock: the engine has just reported `now`."""
        ...

    def thread_subscribers(self) -> ThreadSubscribers | None:
        """Return the subscribers with which each thread waits for hints on its own connection. None: this engine has no
        such subscribers, and the hub's thread wakes the waiting threads.
        """
        ...

    def replica_acks(self) -> ReplicaAcks | None:
        """Return the object that counts replica acknowledgements; None if this engine cannot count them."""
        ...

    async def open(self) -> None:
        """Reach the engine and check that it can be used."""
        ...
