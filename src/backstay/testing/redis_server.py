"""A Redis or Valkey server of one's own, on a free loopback port."""

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
from backstay.engine.redis.link.protocol import Refusal, SignIn, pack
from backstay.errors import EngineError
from backstay.testing.certificates import Certificates
from backstay.testing.ports import lasting_port

#: A server that is not up by then will not come up, on however busy a machine.
START_WAIT = 60.0


class ServerMissing(Exception):
    """The program is not installed; the message says what to install."""


def redis_program() -> str:
    """The server to test against: BACKSTAY_REDIS_SERVER, else redis-server or valkey-server on PATH."""
    for name in (os.environ.get("BACKSTAY_REDIS_SERVER"), "redis-server", "valkey-server"):
        if name and (found := shutil.which(name)):
            return found
    raise ServerMissing("redis-server is not installed; on Debian: apt-get install redis-server")


class RedisServer:
    """A Redis of one's own. `kill`, `pause`, `resume` and `restart` are what chaos tests are made of.

    tls: speak TLS, and nothing else. client_certificates: clients need one too. password: what `say` signs in with.
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
        self.port = port or lasting_port()
        self.aof = aof
        self.options = options
        self.password = password
        self.tls = tls
        self._client_certificates = client_certificates
        #: Environment variables for the program, besides our own.
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
            with contextlib.suppress(OSError), self._knock() as sock:
                sock.sendall(b"PING\r\n")
                if sock.recv(64):  # +PONG, -NOAUTH and -LOADING all mean: it listens
                    return self
            time.sleep(0.02)
        raise RuntimeError(f"redis-server did not start:\n{(self.folder / 'log').read_text()[-2000:]}")

    def _knock(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=1)
        trust = self.trust()
        return sock if trust is None else trust.wrap_socket(sock)

    def trust(self) -> ssl.SSLContext | None:
        """How those who made the certificates talk to it; None: in the clear."""
        if self.tls is None:
            return None
        trust = ssl.create_default_context(cafile=self.tls.ca)
        trust.check_hostname = False  # whoever made the certificates may have made a wrong one on purpose
        trust.load_cert_chain(*self.tls.client)
        return trust

    def kill(self) -> None:
        """Kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Killed and started again on the same port; what survives is what was persisted."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """Safe twice."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def say(server: RedisServer, *command: bytes | str | int) -> Any:
    """One command to one server, past everything that may be under test. Refusals are raised."""
    auth = [pack("AUTH", server.password)] if server.password else []
    link = BlockingLink(Address(port=server.port), "", server.trust(), talk=_one([*auth, pack(*command)]))
    link.close()
    if isinstance(link.told, Refusal):
        raise link.told
    return link.told


def _one(requests: list[bytes]) -> SignIn:
    replies = yield requests
    return replies[-1]


def until(claim: Callable[[], object], what: str, within: float = START_WAIT) -> None:
    deadline = time.monotonic() + within
    while True:
        with contextlib.suppress(EngineError, Refusal):
            if claim():
                return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {within:g} s")
        time.sleep(0.02)
