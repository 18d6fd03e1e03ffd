"""Databases and users of one test's own, on the shared PostgreSQL server."""

from __future__ import annotations

import secrets
from types import SimpleNamespace

import pytest


@pytest.fixture
def admin(backstay_postgres):
    """A connection that may do everything."""
    import psycopg

    with psycopg.connect(backstay_postgres.admin_url, autocommit=True) as admin:
        yield admin


@pytest.fixture
def database(backstay_postgres, admin):
    """An empty database: its name, its URL for whoever owns it, and for a user who owns nothing."""
    name = f"db_{secrets.token_hex(6)}"
    admin.execute(f"CREATE DATABASE {name}")
    admin.execute(f"CREATE ROLE {name} LOGIN")
    base = f"127.0.0.1:{backstay_postgres.port}/{name}"
    yield SimpleNamespace(name=name, url=f"postgresql://backstay@{base}", humble=f"postgresql://{name}@{base}")
    admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    admin.execute(f"DROP ROLE {name}")
