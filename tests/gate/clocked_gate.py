"""A gate on an engine whose clock the test sets."""

from __future__ import annotations

from backstay.engine.base import Apply, Read
from backstay.engine.postgres.address import parse as parse_postgres
from backstay.engine.postgres.engine import PostgresEngine
from backstay.engine.redis.address import parse
from backstay.engine.redis.engine import RedisEngine
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.gate import machine
from backstay.gate.commands import CallerIdentity
from backstay.gate.machine import DAY, GATE

START = 1_700_000_000_000_000
SECOND = 1_000_000


class Clocked:
    """One gate on a real engine; `now` is the engine's time in µs."""

    def __init__(self, url, namespace):
        self.now = START
        if url.startswith("redis"):
            self.engine = RedisEngine(parse(url), namespace=namespace, clock=lambda: self.now)
        elif url.startswith("postgres"):
            self.engine = PostgresEngine(parse_postgres(url), namespace=namespace, clock=lambda: self.now)
        else:
            self.engine = SqliteEngine(":memory:", namespace=namespace, clock=lambda: self.now)

    def apply(self, command, name="gate"):
        (reply,) = self.engine.apply_many([Apply(GATE, name, command)])
        if isinstance(reply, BaseException):
            raise reply
        return reply

    def read_state(self, name="gate"):
        (reading,) = self.engine.apply_many([Read(GATE, name)])
        return reading.state

    def acquire(self, ticket, *, ttl=30 * SECOND, exclusive=True, capacity=1, queue=1000, name="gate", identity=None):
        command = machine.Acquire(
            self.now + DAY,
            ticket,
            f"id-{ticket}",
            exclusive,
            capacity,
            ttl,
            "inbox",
            queue,
            identity or CallerIdentity(),
        )
        return self.apply(command, name)

    def read(self, ticket, **options):
        return self.acquire(ticket, exclusive=False, capacity=0, **options)

    def write(self, ticket, **options):
        return self.acquire(ticket, exclusive=True, capacity=0, **options)

    def release(self, ticket, *, fence=0, gone_until=0):
        return self.apply(machine.Release(self.now + DAY, ticket, f"id-{ticket}", fence, gone_until))

    def renew(self, ticket, *, fence=0, ttl=30 * SECOND, ttl_number=0):
        return self.apply(machine.Renew(self.now + DAY, ticket, fence, ttl, ttl_number))

    def holders(self):
        return [holder.ticket for holder in self.read_state().holders]
