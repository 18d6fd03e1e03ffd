"""Databases and users for one test, on the shared PostgreSQL server."""

from __future__ import annotations

import secrets
from types import SimpleNamespace

import pytest


@pytest.fixture
def admin(backstay_postgres):
    """A superuser's connection."""
    import psycopg

    with psycopg.connect(backstay_postgres.admin_url, autocommit=True) as admin:
        yield admin


@pytest.fixture
def database(backstay_postgres, admin):
    """An empty database: its name, the URL of its owner (`url`) and of a user who owns nothing (`humble`)."""
    name = f"db_{secrets.token_hex(6)}"
    admin.execute(f"CREATE DATABASE {name}")
    admin.execute(f"CREATE ROLE {name} LOGIN")
    base = f"127.0.0.1:{backstay_postgres.port}/{name}"
    yield SimpleNamespace(name=name, url=f"postgresql://backstay@{base}", humble=f"postgresql://{name}@{base}")
    admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    admin.execute(f"DROP ROLE {name}")
