"""A database that a user of Backstay has: SQLite or PostgreSQL, through a driver or SQLAlchemy."""

from __future__ import annotations

import sqlite3

import psycopg
import sqlalchemy


class UserDatabase:
    """`product` is "sqlite" or "postgres"; `address` is a path or a URL."""

    def __init__(self, product, address):
        self.product, self.address = product, address

    def connect(self, **options):
        """Open a connection with the driver of the database."""
        driver = sqlite3 if self.product == "sqlite" else psycopg
        return driver.connect(self.address, **options)

    def engine(self, **options):
        """Create an SQLAlchemy engine."""
        if self.product == "sqlite":
            return sqlalchemy.create_engine(f"sqlite:///{self.address}", **options)
        return sqlalchemy.create_engine(self.address.replace("postgresql://", "postgresql+psycopg://"), **options)
