"""A database for idempotency in the caller's transaction."""

from __future__ import annotations

import psycopg
import pytest
from effects_database import EffectsDatabase

import backstay.sync

PRODUCTS = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture
def stay():
    with backstay.sync.Backstay("memory://") as stay:
        yield stay


@pytest.fixture(params=PRODUCTS)
def store(request, tmp_path, stay):
    if request.param == "sqlite":
        made = EffectsDatabase("sqlite", tmp_path / "effects.db")
        made.create_records(stay)
        yield made
        return
    server = request.getfixturevalue("backstay_postgres")
    name = f"effects_{tmp_path.name[-24:]}".replace("-", "_").lower()
    with psycopg.connect(server.admin_url, autocommit=True) as admin:
        admin.execute(f"DROP DATABASE IF EXISTS {name}")
        admin.execute(f"CREATE DATABASE {name}")
        made = EffectsDatabase("postgres", f"postgresql://backstay@127.0.0.1:{server.port}/{name}")
        made.create_records(stay)
        yield made
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
