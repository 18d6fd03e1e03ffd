"""Start a throw-away PostgreSQL server on a free loopback port, as an unprivileged user."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from backstay.testing.servers.ports import reserve_port
from backstay.testing.servers.postgres_data import DATABASE, create_data_directory, run_as_server_user
from backstay.testing.servers.redis import START_WAIT, ServerMissing

#: Seconds that backends have to exit after the postmaster was killed, before they are killed, too.
BACKEND_EXIT_SECONDS = 3.0


def postgres_programs() -> Path:
    """Return the folder with initdb and postgres: BACKSTAY_POSTGRES_BIN, else the one on PATH, else Debian's newest."""
    if given := os.environ.get("BACKSTAY_POSTGRES_BIN"):
        return Path(given)
    if found := shutil.which("initdb"):
        return Path(found).parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: float(p.parts[-3]))
    if versions:
        return versions[-1].parent
    raise ServerMissing("PostgreSQL's server is not installed; on Debian: apt-get install postgresql")


class PostgresServer:
    """A throw-away PostgreSQL server. Every local user may connect as `backstay`, without a password."""

    def __init__(self, *, port: int = 0, settings: dict[str, str] | None = None) -> None:
        self.port = port or reserve_port()
        # Without fsync, written data survives a kill of the server in the page cache. Only a crash of the host loses
        # it.
        self._settings = {"fsync": "off", "full_page_writes": "off", **(settings or {})}
        self.folder = Path(tempfile.mkdtemp(prefix="backstay-postgres-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://backstay@127.0.0.1:{self.port}/{DATABASE}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None

    def start(self) -> Self:
        programs = postgres_programs()
        data = self.folder / "data"
        if not data.exists():
            create_data_directory(self.folder, programs)
        settings = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "300",
            "shared_buffers": "32MB",
            **self._settings,
        }
        command = [str(programs / "postgres"), "-D", str(data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with (self.folder / "log").open("ab") as log:
            self._process = run_as_server_user(command, log, self.folder)
        self._await()
        return self

    def _await(self) -> None:
        import psycopg

        deadline = time.monotonic() + START_WAIT
        while self._process is not None and self._process.poll() is None and time.monotonic() < deadline:
            try:
                psycopg.connect(self.admin_url, connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                time.sleep(0.03)
        output = self._read_log()
        self.stop()
        raise RuntimeError(f"postgres did not start:\n{output}")

    def _read_log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-2000:]

    @property
    def admin_url(self) -> str:
        return f"postgresql://backstay@127.0.0.1:{self.port}/postgres"

    def kill(self) -> None:
        """Kill the postmaster with SIGKILL and wait until its backends have exited."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Suspend the server and all backends (SIGSTOP): connections stay open and get no answer."""
        for pid in self._process_ids():
            self._signal(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in self._process_ids():
            self._signal(pid, signal.SIGCONT)

    def _process_ids(self) -> list[int]:
        """Return the process ids of the postmaster and its children, the postmaster first."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [self.pid, *(int(pid) for pid in children.read_text().split())]

    def _find_server_processes(self) -> list[int]:
        """Return the ids of all processes whose working directory is the server's data directory. Ids that were stored
        earlier would be unsafe, because they may have been reused. Zombies, which some containers never reap, have no
        working directory.
        """
        data, found = str(self.folder / "data"), list[int]()
        for link in Path("/proc").glob("[0-9]*/cwd"):
            with suppress(OSError):
                if str(link.readlink()) == data:
                    found.append(int(link.parent.name))
        return found

    @staticmethod
    def _signal(pid: int, how: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # a backend may have exited
            os.kill(pid, how)

    def restart(self, *, fast: bool = False) -> None:
        """Restart the server on the same port. It is killed first or, with `fast`, shut down."""
        self._end(signal.SIGINT if fast else signal.SIGKILL)
        self.start()

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)  # a suspended process cannot exit
        process.wait()
        for pid in self._find_server_processes():
            self._signal(pid, signal.SIGCONT)
        # A new server and an old backend would corrupt the data directory together. So wait for all old backends,
        # including one that was forked just before the kill.
        began = time.monotonic()
        while processes := self._find_server_processes():
            waited = time.monotonic() - began
            if waited > START_WAIT:
                raise RuntimeError("the server has ended, its backends have not")
            for pid in processes if waited > BACKEND_EXIT_SECONDS else ():
                self._signal(pid, signal.SIGKILL)
            time.sleep(0.005)
        pid_file = self.folder / "data" / "postmaster.pid"
        pid_file.unlink(missing_ok=True)  # a killed server leaves it behind

    def stop(self) -> None:
        """Stop the server and delete its folder. Safe to call twice."""
        self._end(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
