"""One list says which rights a user needs who may not create tables, and nothing is missing from it."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

from backstay.doctor.examine import examine
from backstay.engine.postgres import schema
from backstay.engine.postgres.batches.batch_connection import SWEPT
from backstay.engine.postgres.rights import RIGHTS, grants
from synthetic_migration import add_migration

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/postgresql.md"


@pytest.mark.postgres
def test_every_table_that_migrations_make_is_in_the_list(database):
    with psycopg.connect(database.url, autocommit=True) as owner:
        owner.execute(schema.as_sql())
        made = owner.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    assert {name for (name,) in made} == set(RIGHTS)


def test_what_is_swept_may_be_deleted():
    assert [table for table in SWEPT if "DELETE" not in RIGHTS[table]] == []


def test_the_page_on_postgresql_shows_the_list():
    shown = re.findall(r"^GRANT .*", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert shown == grants("app")


@pytest.mark.postgres
@pytest.mark.parametrize("table", RIGHTS)
def test_the_doctor_asks_for_what_is_lacking_and_for_nothing_else(database, table):
    def unwell():
        return [f for f in examine(database.humble).findings if f.topic in ("rights", "schema") and f.level != "ok"]

    with psycopg.connect(database.url, autocommit=True) as owner:
        owner.execute(schema.as_sql())
        owner.execute("".join(grants(database.name)))
        assert unwell() == []
        for right in RIGHTS[table]:
            owner.execute(f"REVOKE {right} ON {table} FROM {database.name}")
            (finding,) = unwell()
            assert finding.advice == " ".join(grants(database.name, [table]))
            owner.execute(finding.advice)
            assert unwell() == []


@pytest.mark.postgres
def test_the_doctor_promises_no_migration_to_a_user_who_may_not_write_it_down(database, monkeypatch):
    add_migration(monkeypatch)
    with psycopg.connect(database.url, autocommit=True) as owner:
        owner.execute(schema.as_sql())
        owner.execute("".join(grants(database.name)))
        owner.execute("UPDATE backstay_meta SET value = value - 1")
        owner.execute(f"GRANT CREATE ON SCHEMA public TO {database.name}")
    (finding,) = [f for f in examine(database.humble).findings if f.topic == "schema"]
    assert finding.level == "problem"
    assert finding.what.startswith(f"schema {schema.latest() - 1} of {schema.latest()}")
