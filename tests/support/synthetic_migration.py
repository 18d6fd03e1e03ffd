"""A migration that exists only in tests: it comes after the real ones, so that tests can upgrade a database."""

from __future__ import annotations

from backstay.engine import migrations

#: Valid on both SQL engines. It reads data of the older schema: the table's only row is the number of stored jobs.
MIGRATION = """\
-- Purpose: a table that only tests have.
CREATE TABLE backstay_synthetic (jobs bigint NOT NULL);
INSERT INTO backstay_synthetic SELECT count(*) FROM backstay_job;
"""
#: A migration whose first statement succeeds and whose second fails.
BROKEN = """\
CREATE TABLE backstay_synthetic (jobs bigint NOT NULL);
INSERT INTO backstay_synthetic SELECT count(*) FROM backstay_no_such_table;
"""
JOBS = "SELECT jobs FROM backstay_synthetic"
VERSION = "SELECT value FROM backstay_meta WHERE key = 'schema'"

_real = migrations.scripts


def real(engine):
    """Return the latest schema version of the package, without the migration of the tests."""
    return len(_real(engine))


def add_migration(monkeypatch, script=MIGRATION):
    """Add a schema version to this process for the rest of the test."""
    monkeypatch.setattr(migrations, "scripts", lambda engine: [*_real(engine), script])
