"""A database for jobs that are enqueued in the caller's transaction."""

from __future__ import annotations

import contextlib
import uuid

import backstay
import backstay.sync
from backstay.testing.waiting import WITHIN
from support.user_database import UserDatabase


class OrderDatabase(UserDatabase):
    """A database with a blocking Backstay on it that has one job type."""

    def __init__(self, product, url, address):
        super().__init__(product, address)
        self.stay = backstay.sync.Backstay(url, namespace=f"t{uuid.uuid4().hex[:12]}").open()

        @self.stay.job()
        def ship(order: int) -> int:
            return order

        self.ship = ship

    def enqueue(self, connection, order, **options):
        """Enqueue a job in the transaction of a connection."""
        return self.ship.options(connection=connection, **options).enqueue(order)

    def orders(self):
        """Return the orders of all committed jobs."""
        return sorted(job.args["order"] for job in self.stay.jobs.list())

    @contextlib.contextmanager
    def listening(self):
        """Subscribe to the announcements of jobs during the block."""
        with self.stay.hub.listen_scheduled() as notices:
            yield notices

    def is_announced(self, notices):
        notice = notices.next(timeout=WITHIN)
        return notice is not None and notice.type == "ship" and not notice.missed


def is_silent(notices):
    return notices.next(timeout=0.3) is None


def define_ship(stay):
    """Define the job type on an async Backstay."""

    @stay.job()
    async def ship(order: int) -> int:
        return order

    return ship
