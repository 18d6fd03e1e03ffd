"""Pools of a user that are closed after the test."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from psycopg_pool import ConnectionPool


@pytest.fixture
def pools(backstay_postgres):
    """Create pools and close them at the end."""
    with ExitStack() as stack:

        def make(conninfo=backstay_postgres.url, *, size=2, **options):
            options = {"open": True, "timeout": 5, **options}
            return stack.enter_context(ConnectionPool(conninfo, min_size=size, max_size=size, **options))

        yield make
