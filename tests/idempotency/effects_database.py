"""A database in which a test writes effects and records of idempotency keys in one transaction."""

from __future__ import annotations

from support.user_database import UserDatabase

TABLES = ("charge", "backstay_idempotency")


class EffectsDatabase(UserDatabase):
    """A database with tables for effects and for the records of idempotency keys."""

    def __init__(self, product, address):
        super().__init__(product, address)
        self.prepare("CREATE TABLE charge (amount INTEGER)")

    def prepare(self, statement):
        db = self.connect()
        db.execute(statement)
        db.commit()
        db.close()

    def create_records(self, stay):
        self.prepare(stay.idempotency.schema("sqlite" if self.product == "sqlite" else "postgresql"))

    def count(self):
        """Return the committed effects and records."""
        db = self.connect()
        found = [db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES]  # noqa: S608 - fixed names
        db.close()
        return tuple(found)
