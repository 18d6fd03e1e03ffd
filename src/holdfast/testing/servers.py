"""Throw-away servers on free loopback ports, for tests and benchmarks."""

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

from holdfast.engine.redis.address import Address
from holdfast.engine.redis.blocking_link import BlockingLink
from holdfast.engine.redis.link import Refusal, SignIn, pack
from holdfast.errors import EngineError
from holdfast.testing.certificates import Certificates
from holdfast.testing.ports import lasting_port

#: A server that is not up by then will not come up.
START_WAIT = 15.0


class ServerMissing(Exception):
    """The program is not installed; the message says what to install."""


def redis_program() -> str:
    """The server to test against: HOLDFAST_REDIS_SERVER, else redis-server or valkey-server on PATH."""
    for name in (os.environ.get("HOLDFAST_REDIS_SERVER"), "redis-server", "valkey-server"):
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
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-redis-"))
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

    def start(self) -> Self:
        command = self._command()
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
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


def say(server: RedisServer, *command: str | int) -> Any:
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


def _await(claim: Callable[[], object], what: str, within: float = START_WAIT) -> None:
    deadline = time.monotonic() + within
    while True:
        with contextlib.suppress(EngineError, Refusal):
            if claim():
                return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {within:g} s")
        time.sleep(0.02)


class _Sentinel(RedisServer):
    """One Sentinel. What it learns it writes into its file, and still knows after a restart."""

    def __init__(self, lines: tuple[str, ...], password: str, tls: Certificates | None) -> None:
        super().__init__(tls=tls, password=password)
        said = [f"sentinel {line}" for line in lines]
        if password:
            said += [f"requirepass {password}", f"sentinel sentinel-pass {password}"]
        said += ["bind 127.0.0.1", f"dir {self.folder}"]
        if tls is None:
            said += [f"port {self.port}"]
        else:
            options = [*tls.options(), "--tls-replication", "yes"]
            said += ["port 0", f"tls-port {self.port}"]
            said += [
                f"{name.removeprefix('--')} {value}" for name, value in zip(options[::2], options[1::2], strict=True)
            ]
        self._file = self.folder / "sentinel.conf"
        self._file.write_text("\n".join(said) + "\n")

    def _command(self) -> list[str]:
        return [redis_program(), str(self._file), "--sentinel"]


class RedisSentinel:
    """A master, its replicas, and the Sentinels that watch them. Kill `master()`, and `await_failover()`.

    down_after: seconds of silence after which a server counts as dead. options: for the servers, not the Sentinels.
    """

    service = "holdfast"

    def __init__(
        self,
        *,
        replicas: int = 2,
        sentinels: int = 3,
        down_after: float = 0.5,
        options: tuple[str, ...] = (),
        password: str = "",
        sentinel_lines: tuple[str, ...] = (),
        sentinel_password: str = "",
        tls: Certificates | None = None,
    ) -> None:
        self.tls = tls
        if password:
            options += ("--requirepass", password, "--masterauth", password)
            sentinel_lines += (f"auth-pass {self.service} {password}",)
        quick = ("--repl-diskless-sync-delay", "0", *options)
        if tls is not None:
            quick += ("--tls-replication", "yes")
        first = RedisServer(options=quick, tls=tls, password=password)
        follow = (*quick, "--replicaof", f"127.0.0.1 {first.port}")
        self.servers = [first, *(RedisServer(options=follow, tls=tls, password=password) for _ in range(replicas))]
        self._quorum = sentinels // 2 + 1
        lines = [f"monitor {self.service} 127.0.0.1 {first.port} {self._quorum}"]
        lines += [f"down-after-milliseconds {self.service} {down_after * 1000:.0f}"]
        lines += [f"failover-timeout {self.service} 3000", f"parallel-syncs {self.service} {replicas}"]
        self.sentinels = [_Sentinel((*lines, *sentinel_lines), sentinel_password, tls) for _ in range(sentinels)]

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        if self.tls is not None:
            return f"rediss+sentinel://{places}/{self.service}/0?{self.tls.query}"
        return f"redis+sentinel://{places}/{self.service}/0"

    def start(self) -> Self:
        for server in [*self.servers, *self.sentinels]:
            server.start()
        _await(self._whole, "the Sentinels have found one another and every replica")
        return self

    def _whole(self) -> bool:
        for sentinel in self.sentinels:
            fields = say(sentinel, "SENTINEL", "MASTER", self.service)
            known = dict(zip(fields[::2], fields[1::2], strict=True))
            if int(known[b"num-slaves"]) < len(self.servers) - 1:
                return False
            if int(known[b"num-other-sentinels"]) < len(self.sentinels) - 1:
                return False
        return all(say(server, "ROLE")[3] == b"connected" for server in self.servers[1:])

    def master(self) -> RedisServer:
        """The one that most Sentinels name now."""
        named: list[int] = []
        for sentinel in self.sentinels:
            with contextlib.suppress(EngineError):
                named.append(int(say(sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)[1]))
        port = max(set(named), key=named.count)
        return next(server for server in self.servers if server.port == port)

    def await_failover(self, old: RedisServer, within: float = 30.0) -> RedisServer:
        """Wait until another than `old` is the master and takes writes; answers it."""
        _await(lambda: self.master() is not old and say(self.master(), "ROLE")[0] == b"master", "failover", within)
        return self.master()

    def stop(self) -> None:
        """Safe twice."""
        for server in [*self.sentinels, *self.servers]:
            server.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
