"""Start a throw-away Redis master with replicas, and Sentinels that monitor them."""

from __future__ import annotations

import contextlib
from typing import Self

from backstay.errors import EngineError
from backstay.testing.servers.certificates import Certificates
from backstay.testing.servers.redis import RedisServer, redis_program, say, until


class _Sentinel(RedisServer):
    """One Sentinel. It stores its state in its configuration file, so the state survives a restart."""

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
    """A master, its replicas, and the Sentinels that monitor them. To test a failover, kill `master()` and call
    `await_failover()`.

    down_after: seconds without a reply after which a server counts as dead. If it is too short, Sentinels on a busy
    machine replace a master that is alive. options: command-line options of the servers, not of the Sentinels.
    """

    service = "backstay"

    def __init__(
        self,
        *,
        replicas: int = 2,
        sentinels: int = 3,
        down_after: float = 1.0,
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
        until(self._whole, "the Sentinels have found one another and every replica")
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
        """Return the server that most Sentinels currently report as the master."""
        named: list[int] = []
        for sentinel in self.sentinels:
            with contextlib.suppress(EngineError):
                named.append(int(say(sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)[1]))
        port = max(set(named), key=named.count)
        return next(server for server in self.servers if server.port == port)

    def await_failover(self, old: RedisServer, within: float = 30.0) -> RedisServer:
        """Wait until another server than `old` is the master, and return it."""
        until(lambda: self.master() is not old and say(self.master(), "ROLE")[0] == b"master", "failover", within)
        return self.master()

    def switches(self) -> int:
        """Return the number of master switches: the largest number that one Sentinel has logged, because a busy
        Sentinel may miss one.
        """
        return max((sentinel.folder / "log").read_text().count("+switch-master") for sentinel in self.sentinels)

    def stop(self) -> None:
        """Stop all servers. Safe to call twice."""
        for server in [*self.sentinels, *self.servers]:
            server.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
