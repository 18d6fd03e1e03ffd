"""A migration that exists only in tests: it comes after the real ones, so that tests can upgrade a database."""

from __future__ import annotations

from backstay.engine import migrations

#: Both SQL engines understand it. It reads data of the older schema: its one row is the number of jobs it has found.
MIGRATION = """\
-- Purpose: a table that only tests have.
CREATE TABLE backstay_synthetic (jobs bigint NOT NULL);
INSERT INTO backstay_synthetic SELECT count(*) FROM backstay_job;
"""
#: Its first statement succeeds and its second fails.
BROKEN = """\
CREATE TABLE backstay_synthetic (jobs bigint NOT NULL);
INSERT INTO backstay_synthetic SELECT count(*) FROM backstay_no_such_table;
"""
JOBS = "SELECT jobs FROM backstay_synthetic"
VERSION = "SELECT value FROM backstay_meta WHERE key = 'schema'"

_real = migrations.scripts


def real(engine):
    """The latest schema version of the package itself."""
    return len(_real(engine))


def add_migration(monkeypatch, script=MIGRATION):
    """From now on this process knows one more schema version."""
    monkeypatch.setattr(migrations, "scripts", lambda engine: [*_real(engine), script])
