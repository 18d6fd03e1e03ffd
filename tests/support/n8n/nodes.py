"""What n8n's Redis nodes do to a lock and a limit, command by command, so that tests need no n8n.

Each method of `Nodes` is one node: it opens no transaction and runs no script, because a stock node cannot. The order
is that of the primitives: GET first, INCR and EXPIRE when the key is absent, SET of the identity; to give back, GET,
compare, DEL and DEL. Run as a program it takes a lock some times and writes down when: a party in a race.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import cast

from redis import Redis

from backstay.interop.n8n_wire import keys


class Nodes:
    """One n8n, one workflow, one execution."""

    def __init__(self, url: str, *, execution_id: str = "1", workflow_id: str = "wf", workflow_name: str = "A") -> None:
        make = cast("Callable[..., Redis]", Redis.from_url)  # pyright: ignore[reportUnknownMemberType] # redis-py's
        self.redis = make(url, decode_responses=True)
        self.execution_id = execution_id
        self.workflow_id = workflow_id
        self.workflow_name = workflow_name

    def get(self, key: str) -> str | None:
        return cast("str | None", self.redis.get(key))

    def incr(self, key: str, ttl: int) -> int:
        """The node's two commands: a crash between them leaves a counter without an end."""
        count = int(self.redis.incr(key))
        self.redis.expire(key, ttl)
        return count

    def write_identity(self, scope: str, lock_id: str, ttl: int) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        said = (lock_id, self.workflow_id, self.workflow_name, self.execution_id, now)
        key = keys.meta_key(scope)
        self.redis.set(key, json.dumps(dict(zip(keys.IDENTITY, said, strict=True))))
        self.redis.expire(key, ttl)

    def try_acquire(self, scope: str, ttl: int = keys.TTL_SECONDS) -> str | None:
        """A lock_id, or None where another execution holds the lock."""
        key = keys.lock_key(scope)
        if self.get(key) is not None or self.incr(key, ttl) != 1:
            return None
        lock_id = str(uuid.uuid4())
        self.write_identity(scope, lock_id, ttl)
        return lock_id

    def acquire(self, scope: str, ttl: int = keys.TTL_SECONDS, wait: float = 60, poll: float = 1.0) -> str:
        until = time.monotonic() + wait
        while (lock_id := self.try_acquire(scope, ttl)) is None:
            if time.monotonic() > until:
                raise TimeoutError(scope)
            time.sleep(poll)
        return lock_id

    def release(self, scope: str, lock_id: str) -> bool:
        """True: idempotent, no lock was there. ValueError: another execution holds it."""
        meta = self.get(keys.meta_key(scope))
        if meta is None:
            return True
        if json.loads(meta)["lock_id"] != lock_id:
            raise ValueError(f"LOGIC ERROR: {meta}")
        self.delete(scope)
        return False

    def delete(self, scope: str) -> None:
        """Delete the identity first: while the counter is set, no other execution writes an identity that this would
        delete.
        """
        self.redis.delete(keys.meta_key(scope))
        self.redis.delete(keys.lock_key(scope))

    def hit(self, scope: str, window: int, now_ms: int) -> int:
        """The limit's one node; the bucket is this host's."""
        return self.incr(keys.limit_key(scope, keys.limit_bucket(now_ms, window)), window)


def main(url: str, scope: str, path: str, rounds: int, hold: float, poll: float) -> None:
    """Take the lock so often, and write when it was held: `begin end` in ns of the machine's clock."""
    nodes = Nodes(url, execution_id=str(uuid.uuid4()))
    with open(path, "a", encoding="ascii") as book:  # noqa: PTH123 - append, line by line
        for _ in range(rounds):
            lock_id = nodes.acquire(scope, poll=poll)
            begin = time.monotonic_ns()
            time.sleep(hold)
            end = time.monotonic_ns()
            nodes.release(scope, lock_id)
            book.write(f"{begin} {end}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]), float(sys.argv[6]))
