"""A fake server: it sends the replies that a test defines, byte for byte."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Callable
from typing import Self

import hiredis

OK = b"+OK\r\n"


def bulk(text: str | bytes) -> bytes:
    """Encode a bulk string in RESP."""
    raw = text.encode() if isinstance(text, str) else text
    return b"$%d\r\n%b\r\n" % (len(raw), raw)


def array(*items: bytes) -> bytes:
    return b"*%d\r\n%b" % (len(items), b"".join(items))


class Hangup(Exception):
    """Raised by `answer` to send `last_bytes` and close the connection."""

    def __init__(self, last_bytes: bytes = b"") -> None:
        super().__init__()
        self.last_bytes = last_bytes


class FakeServer:
    """Replies to the handshake of clients like a Redis of `version`, and to all other commands with `answer(command)`.

    `answer` returns the bytes to send, b"" for no reply, or None for +OK; it may raise `Hangup`. `greet` is called
    first, for every command including the handshake; if it returns bytes, they are the reply.
    """

    def __init__(
        self,
        answer: Callable[[list[bytes]], bytes | None] = lambda _: None,
        *,
        greet: Callable[[list[bytes]], bytes | None] = lambda _: None,
        version: str = "7.0.0",
    ) -> None:
        self.version = version
        self.answer = answer
        self.greet = greet
        #: All commands received so far, in order.
        self.commands: list[list[bytes]] = []
        self._server = _Server(("127.0.0.1", 0), self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def reply(self, command: list[bytes]) -> bytes:
        self.commands.append(command)
        greeting = self.greet(command)
        if greeting is not None:
            return greeting
        match command[0].upper():
            case b"HELLO":
                return b"%%2\r\n%b%b%b%b" % (bulk("server"), bulk("redis"), bulk("version"), bulk(self.version))
            case b"TIME":
                now = time.time_ns() // 1000
                return array(bulk(str(now // 1_000_000)), bulk(str(now % 1_000_000)))
            case b"CLIENT" | b"SELECT" | b"AUTH":
                return OK
            case _:
                pass
        reply = self.answer(command)
        return OK if reply is None else reply

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.hang_up()
        self._server.server_close()
        self._thread.join()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], owner: FakeServer) -> None:
        super().__init__(address, _Connection)
        self.owner = owner
        self.open: set[socket.socket] = set()

    def hang_up(self) -> None:
        for sock in list(self.open):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


class _Connection(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        sock: socket.socket = self.request
        server = self.server
        assert isinstance(server, _Server)
        server.open.add(sock)
        reader = hiredis.Reader()
        try:
            while data := sock.recv(65536):
                reader.feed(data)
                while (command := reader.gets()) is not False:
                    sock.sendall(server.owner.reply(list(command)))
        except Hangup as hangup:
            sock.sendall(hangup.last_bytes)
        except OSError:
            pass
        finally:
            server.open.discard(sock)
