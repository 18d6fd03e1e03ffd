"""Start a throw-away Redis Cluster."""

from __future__ import annotations

import subprocess
import time
from typing import Self

from backstay.testing.servers.certificates import Certificates
from backstay.testing.servers.ports import reserve_port_pair
from backstay.testing.servers.redis import RedisServer, redis_program, say, until


class RedisCluster:
    """A throw-away Redis Cluster of masters and replicas. After a test has killed a node, `await_whole()` waits until
    all slots are served again.

    node_timeout: seconds without a reply after which a node counts as failed.
    """

    def __init__(
        self,
        *,
        masters: int = 3,
        replicas: int = 1,
        node_timeout: float = 1.0,
        options: tuple[str, ...] = (),
        tls: Certificates | None = None,
    ) -> None:
        self._masters, self._replicas = masters, replicas
        self.tls = tls
        options = ("--cluster-enabled", "yes", "--repl-diskless-sync-delay", "0", *options)
        options += ("--cluster-node-timeout", f"{node_timeout * 1000:.0f}", "--cluster-replica-validity-factor", "0")
        if tls is not None:
            options += ("--tls-cluster", "yes", "--tls-replication", "yes")
        count = masters * (1 + replicas)
        self.nodes = [RedisServer(port=reserve_port_pair(), options=options, tls=tls) for _ in range(count)]

    @property
    def url(self) -> str:
        """A URL with two of the nodes as seeds; clients discover the others."""
        places = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:2])
        return f"rediss+cluster://{places}?{self.tls.query}" if self.tls else f"redis+cluster://{places}"

    def start(self) -> Self:
        for node in self.nodes:
            node.start()
        program = redis_program().replace("redis-server", "redis-cli").replace("valkey-server", "valkey-cli")
        command = [program, "--cluster", "create", *(f"127.0.0.1:{node.port}" for node in self.nodes)]
        command += ["--cluster-replicas", str(self._replicas), "--cluster-yes"]
        if self.tls is not None:
            cert, key = map(str, self.tls.client)
            command += ["--tls", "--cacert", str(self.tls.ca), "--cert", cert, "--key", key]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            raise RuntimeError(f"the Cluster could not be created:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        self.await_whole()
        until(self._are_replicas_known, "every node knows all replicas")
        for node in self.masters():
            say(node, "FLUSHALL")  # CLUSTER SLOTS lists a replica only after it has received data
        until(self._are_replicas_listed, "every node lists all replicas")
        return self

    def _are_replicas_listed(self) -> bool:
        return all(
            len(replicas) == self._replicas
            for node in self.nodes
            for _, _, _, *replicas in say(node, "CLUSTER", "SLOTS")
        )

    def _are_replicas_known(self) -> bool:
        replicas = self._masters * self._replicas
        return all(say(node, "CLUSTER", "NODES").count(b"slave ") == replicas for node in self.nodes)

    def await_whole(self, within: float = 30.0) -> None:
        """Wait until every running node reports that all slots are served, and every replica follows its master."""
        until(self._is_whole, "every slot is served", within)

    def _is_whole(self) -> bool:
        running = [node for node in self.nodes if node.running]
        return all(b"cluster_state:ok" in say(node, "CLUSTER", "INFO") and self._follows(node) for node in running)

    @staticmethod
    def _follows(node: RedisServer) -> bool:
        role = say(node, "ROLE")
        return bool(role[0] == b"master" or role[3] == b"connected")

    def masters(self) -> list[RedisServer]:
        """Return the nodes that currently serve slots."""
        serving = {entry[2][1] for entry in say(self._find_running_node(), "CLUSTER", "SLOTS")}
        return [node for node in self.nodes if node.port in serving]

    def master_of(self, slot: int) -> RedisServer:
        for first, last, master, *_ in say(self._find_running_node(), "CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == master[1])
        raise LookupError(f"slot {slot} is not served")

    def await_failover(self, old: RedisServer, within: float = 30.0) -> None:
        """Wait until another node serves the slots of a killed node."""
        until(lambda: old not in self.masters() and self._is_whole(), "failover", within)

    def migrate(self, slot: int, target: RedisServer, pause: float = 0.0) -> None:
        """Migrate a slot key by key, while clients use it. `pause`: seconds to sleep after each step."""
        source = self.master_of(slot)
        if source is target:
            return
        names = [say(node, "CLUSTER", "MYID").decode() for node in (source, target)]
        say(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", names[0])
        say(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", names[1])
        time.sleep(pause)
        while keys := say(source, "CLUSTER", "GETKEYSINSLOT", slot, 10):
            for key in keys:
                say(source, "MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
                time.sleep(pause)
        for node in (target, source, *self.masters()):
            say(node, "CLUSTER", "SETSLOT", slot, "NODE", names[1])

    def _find_running_node(self) -> RedisServer:
        """Return a running node, preferably one that reports `cluster_state:ok`."""
        running = [node for node in self.nodes if node.running]
        whole = [node for node in running if b"cluster_state:ok" in say(node, "CLUSTER", "INFO")]
        return (whole or running)[0]

    def stop(self) -> None:
        """Stop all nodes. Safe to call twice."""
        for node in self.nodes:
            node.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
