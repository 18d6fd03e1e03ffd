"""Start a throw-away Redis or Valkey server on a free loopback port."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from backstay.engine.redis.address import Address
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import ErrorReply, Handshake, pack
from backstay.errors import EngineError
from backstay.testing.servers.certificates import Certificates
from backstay.testing.servers.ports import reserve_port

#: Seconds that a server may take to start, even on a busy machine.
START_WAIT = 60.0


class ServerMissing(Exception):
    """The server program is not installed; the message says what to install."""


def redis_program() -> str:
    """Return the path of the server program: BACKSTAY_REDIS_SERVER, else redis-server or valkey-server on PATH."""
    for name in (os.environ.get("BACKSTAY_REDIS_SERVER"), "redis-server", "valkey-server"):
        if name and (found := shutil.which(name)):
            return found
    raise ServerMissing("redis-server is not installed; on Debian: apt-get install redis-server")


class RedisServer:
    """A throw-away Redis server. Chaos tests call `kill`, `pause`, `resume` and `restart`.

    tls: accept only TLS connections, with these certificates. client_certificates: also require a certificate from
    clients. password: `say` authenticates with it; the server itself requires one only if `options` say so.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        aof: bool = False,
        options: tuple[str, ...] = (),
        password: str = "",
        tls: Certificates | None = None,
        client_certificates: bool = False,
    ) -> None:
        self.port = port or reserve_port()
        self.aof = aof
        self.options = options
        self.password = password
        self.tls = tls
        self._client_certificates = client_certificates
        #: Environment variables for the server program, in addition to those of this process.
        self.env: dict[str, str] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="backstay-redis-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        if self.tls is not None:
            return f"rediss://127.0.0.1:{self.port}/0?{self.tls.query}"
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    def _command(self) -> list[str]:
        command = [redis_program(), "--bind", "127.0.0.1", "--save", ""]
        if self.tls is None:
            command += ["--port", str(self.port)]
        else:
            command += ["--port", "0", "--tls-port", str(self.port)]
            command += self.tls.options(clients=self._client_certificates)
        command += ["--appendonly", "yes" if self.aof else "no", "--appendfsync", "always"]
        command += ["--dir", str(self.folder), "--daemonize", "no", *self.options]
        return command

    @property
    def running(self) -> bool:
        return self._process is not None

    def start(self) -> Self:
        command = self._command()
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **self.env})
        deadline = time.monotonic() + START_WAIT
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            with contextlib.suppress(OSError), self._connect() as sock:
                sock.sendall(b"PING\r\n")
                if sock.recv(64):  # any reply (+PONG, -NOAUTH, -LOADING) shows that it is up
                    return self
            time.sleep(0.02)
        raise RuntimeError(f"redis-server did not start:\n{(self.folder / 'log').read_text()[-2000:]}")

    def _connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=1)
        trust = self.trust()
        return sock if trust is None else trust.wrap_socket(sock)

    def trust(self) -> ssl.SSLContext | None:
        """Return a TLS context that trusts the server's certificate authority; None if the server uses no TLS."""
        if self.tls is None:
            return None
        trust = ssl.create_default_context(cafile=self.tls.ca)
        trust.check_hostname = False  # a test may use a wrong certificate on purpose
        trust.load_cert_chain(*self.tls.client)
        return trust

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Kill the server and start it again on the same port. Only persisted data survives."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """Kill the server and delete its folder. Safe to call twice."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def say(server: RedisServer, *command: bytes | str | int) -> Any:
    """Send one command over a separate connection, bypassing the engine, and return the reply. Raises ErrorReply."""
    auth = [pack("AUTH", server.password)] if server.password else []
    link = BlockingLink(Address(port=server.port), "", server.trust(), handshake=_one([*auth, pack(*command)]))
    link.close()
    if isinstance(link.handshake_result, ErrorReply):
        raise link.handshake_result
    return link.handshake_result


def _one(requests: list[bytes]) -> Handshake:
    replies = yield requests
    return replies[-1]


def until(condition: Callable[[], object], what: str, within: float = START_WAIT) -> None:
    deadline = time.monotonic() + within
    while True:
        with contextlib.suppress(EngineError, ErrorReply):
            if condition():
                return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {within:g} s")
        time.sleep(0.02)
