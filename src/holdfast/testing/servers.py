"""Throw-away servers on free loopback ports, for tests and benchmarks."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

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
    """A Redis of one's own. `kill`, `pause`, `resume` and `restart` are what chaos tests are made of."""

    def __init__(self, *, port: int = 0, aof: bool = False, options: tuple[str, ...] = ()) -> None:
        self.port = port or lasting_port()
        self.aof = aof
        self.options = options
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-redis-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    def start(self) -> Self:
        command = [redis_program(), "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--appendonly", "yes" if self.aof else "no", "--appendfsync", "always"]
        command += ["--dir", str(self.folder), "--daemonize", "no", *self.options]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_WAIT
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), timeout=1) as sock,
            ):
                sock.sendall(b"PING\r\n")
                if sock.recv(64):  # +PONG, -NOAUTH and -LOADING all mean: it listens
                    return self
            time.sleep(0.02)
        raise RuntimeError(f"redis-server did not start:\n{(self.folder / 'log').read_text()[-2000:]}")

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
