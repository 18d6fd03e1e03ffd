"""The Redis protocol without I/O: encode commands, sign in, and interpret error replies.

Both transports (`async_link.py`, `blocking_link.py`) and the hub's subscription use it.
"""

from __future__ import annotations

import re
import select
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, cast

import hiredis

from backstay.engine.redis.address import Address
from backstay.engine.redis.link.credentials import Credentials
from backstay.errors import CorruptRecord, EngineError, EngineRefused, EngineUnavailable

#: The oldest supported servers.
OLDEST = {"redis": (6, 2), "valkey": (7, 2)}

#: Errors of a server that is alive but cannot serve now: it loads its data or runs a long script; a failover or a slot
#: migration is under way; it has no memory (OOM) or cannot write to its disk (MISCONF). The command did not run, so a
#: retry is safe, and the error becomes EngineUnavailable. Neither of the last two arises after a script's first write.
UNAVAILABLE_CODES = {
    "LOADING",
    "BUSY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "READONLY",
    "NOREPLICAS",
    "OOM",
    "MISCONF",
}
#: The same, for an error without a code of its own.
UNAVAILABLE_TEXTS = ("max number of clients",)
#: Errors after which the connection is closed: a new one may reach another server.
STALE_CODES = {"READONLY", "MASTERDOWN"}
#: Errors of a Cluster node after which the slot map is reloaded: another node may serve the slot.
REROUTED_CODES = {"CLUSTERDOWN", "TRYAGAIN", "LOADING", "MASTERDOWN"}

#: Redis 6.2 puts the error of a command that a script called behind the script's name and line.
IN_SCRIPT = re.compile(r"@user_script: ?\d+: -?([A-Z]{2,}) ")


#: Before a command is sent on a connection that was idle for this many seconds, the client checks whether the server
#: has closed it meanwhile. A command sent on a closed connection is lost, and its outcome would count as unknown.
IDLE = 0.001


def watch_closing(fd: int) -> Callable[[], bool]:
    """Return a function that returns whether the server has closed this connection. It neither reads nor blocks. On
    systems without POLLRDHUP (it is on Linux only), it always returns False.
    """
    closing = getattr(select, "POLLRDHUP", 0)
    if not closing:
        return lambda: False
    poller = select.poll()
    poller.register(fd, closing)
    return lambda: bool(poller.poll(0))


#: The server also sends messages that are no replies to commands. Their first element is one of these.
PUSHES = (b"message", b"subscribe", b"unsubscribe")


class ErrorReply(Exception):
    """An error reply of the server. The parser (hiredis) returns it like any other reply; the code that encoded the
    command raises it.
    """

    @property
    def code(self) -> str:
        """The error's first word, which names its kind; for a command that a script called, the command's error."""
        text = str(self)
        in_script = IN_SCRIPT.search(text)
        return in_script[1] if in_script else text.split(" ", 1)[0]


#: hiredis's type stub wrongly requires a tuple of one element.
_pack_command = cast("Callable[[tuple[bytes | str | int, ...]], bytes]", hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]


def new_reader() -> hiredis.Reader:
    return hiredis.Reader(protocolError=hiredis.ProtocolError, replyError=ErrorReply)


def is_push(reply: Any) -> bool:
    """Whether this is a Pub/Sub message, not the reply to a command (the same in RESP2 and RESP3)."""
    return issubclass(type(reply), list) and len(reply) > 1 and reply[0] in PUSHES


def pack(*args: bytes | str | int) -> bytes:
    """Encode a command as RESP."""
    return _pack_command(args)


#: Sent before a command that wakes waiters, so that their messages leave the server before the sender's reply. Redis
#: sends the output of its clients in reverse order: the client that it wrote to first is served last. Because of this
#: PING, Redis writes to the sender first. The waiters get their message 0.07 ms earlier.
PING_FIRST = pack("PING")
#: Makes a Cluster node accept the next command for a slot that it is importing.
ASKING = pack("ASKING")


@dataclass(frozen=True, slots=True)
class Hello:
    """The result of signing in: the server's kind, version and clock (µs)."""

    server: str
    version: tuple[int, ...]
    now: int
    #: Whether the connection uses RESP3, with which it can send commands and also receive Pub/Sub messages.
    resp3: bool = False


#: A generator that signs in on a new connection. It yields a batch of commands and is sent their replies, or it yields
#: a `Credentials` and is sent the username and password fetched from it. Its return value is the handshake's result.
Handshake = Generator[list[bytes] | Credentials, Any, Any]


def auth_command(address: Address) -> Generator[Credentials, tuple[str, str], tuple[str, ...]]:
    """Return the AUTH command with its arguments; empty if there is no username and no password."""
    username, password = address.username, address.password
    if address.credentials is not None:
        username, password = yield address.credentials
    return ("AUTH", username or "default", password) if username or password else ()


def sign_in(address: Address, client_name: str) -> Generator[list[bytes] | Credentials, Any, Hello]:
    """Authenticate, set the client name and the database, check the version, and read the clock."""
    auth = yield from auth_command(address)
    first = [pack("HELLO", "3", *auth, "SETNAME", client_name)]
    (hello,) = yield first
    if isinstance(hello, ErrorReply) and hello.code in ("ERR", "NOPROTO", "NOPERM") and not cannot_serve_now(hello):
        # The server has no RESP3, or the ACL forbids HELLO: sign in with AUTH and RESP2.
        old = [pack("AUTH", *auth[1:])] if auth else []
        replies = yield [*old, pack("CLIENT", "SETNAME", client_name), pack("INFO", "server")]
        for reply in replies[: len(old)]:
            if isinstance(reply, ErrorReply):
                raise translate_error(reply, address)
        hello = _from_info(replies[-1])
    if isinstance(hello, ErrorReply):
        raise translate_error(hello, address)
    fields = _fields(hello)
    if fields is None:
        raise EngineRefused(f"{address} does not answer as Redis does")
    rest = [pack("SELECT", address.db)] if address.db else []
    replies = yield [*rest, pack("TIME")]
    for reply in replies:
        if isinstance(reply, ErrorReply):
            raise translate_error(reply, address)
    server, version = fields.get("server", "redis"), _version(fields.get("version", ""))
    oldest = OLDEST.get(server, OLDEST["redis"])
    if version and version < oldest:
        raise EngineRefused(
            f"{address} is {server} {fields['version']}; Backstay needs {server} {oldest[0]}.{oldest[1]} or newer"
        )
    match replies[-1]:
        case [bytes() as seconds, bytes() as micros] if seconds.isdigit() and micros.isdigit():
            return Hello(server, version, int(seconds) * 1_000_000 + int(micros), fields.get("proto") == "3")
        case _:
            raise EngineRefused(f"{address} does not answer as Redis does")


def _fields(hello: Any) -> dict[str, str] | None:
    match hello:
        case {**items}:
            return {_text(k): _text(v) for k, v in items.items()}
        case _:
            return None


def _from_info(reply: Any) -> dict[str, str]:
    if isinstance(reply, ErrorReply):
        return {}
    found = dict(re.findall(r"^(redis|valkey)_version:(\S+)", _text(reply), re.MULTILINE))
    server = "valkey" if "valkey" in found else "redis"
    return {"server": server, "version": found.get(server, "")}


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", text)[:3])


def _is_script_failure(text: str) -> bool:
    """Whether the Lua code of a script failed, not a Redis command that it called. The Lua code fails only if it reads
    a damaged record.
    """
    own = re.search(r"user_script:\d+: ", text) is not None
    return own and IN_SCRIPT.search(text) is None and "The user executing" not in text


def cannot_serve_now(reply: ErrorReply) -> bool:
    """Whether this error passes without a change of the request or of the user's rights. The command did not run."""
    return reply.code in UNAVAILABLE_CODES or any(words in str(reply) for words in UNAVAILABLE_TEXTS)


def translate_error(reply: ErrorReply, address: Address) -> EngineError:
    """Convert a server's error reply into a Backstay error. It never repeats a secret."""
    code, text = reply.code, str(reply)
    if code == "READONLY":
        return EngineUnavailable(f"{address} is a read-only replica; point the URL at its master")
    if code == "OOM":
        return EngineUnavailable(f"{address} is full: it has reached its maxmemory and refuses writes: {text}")
    if cannot_serve_now(reply):
        return EngineUnavailable(f"{address} cannot serve now: {text}")
    if code in ("WRONGPASS", "NOAUTH") or "invalid username-password" in text or "Client sent AUTH" in text:
        return EngineRefused(f"{address} refused the username or password")
    if code in ("MOVED", "ASK"):
        return EngineRefused(f"{address} is a Cluster node; use redis+cluster:// ({text})")
    if code in ("CORRUPT", "WRONGTYPE") or _is_script_failure(text):
        return CorruptRecord(f"{address} holds a record that cannot be read: {text}")
    return EngineRefused(f"{address} refused: {text}")


def describe_failure(error: BaseException, address: Address) -> str:
    """Describe why a server could not be reached."""
    if isinstance(error, TimeoutError):
        return "no answer in time" + (" (does it speak TLS?)" if address.tls else "")
    return str(error) or type(error).__name__
