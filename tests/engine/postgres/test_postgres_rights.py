"""The rights list is complete: a user who may not create tables needs exactly these grants."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

from backstay.doctor.examine import examine
from backstay.engine.postgres import schema
from backstay.engine.postgres.batches.batch_connection import SWEPT
from backstay.engine.postgres.rights import RIGHTS, grants
from support.synthetic_migration import add_migration

PAGE = Path(__file__).resolve().parents[3] / "docs/how-to/postgresql.md"


@pytest.mark.postgres
def test_every_table_of_the_migrations_is_in_the_rights_list(database):
    with psycopg.connect(database.url, autocommit=True) as owner:
        owner.execute(schema.as_sql())
        made = owner.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    assert {name for (name,) in made} == set(RIGHTS)


def test_swept_tables_have_the_delete_right():
    assert [table for table in SWEPT if "DELETE" not in RIGHTS[table]] == []


def test_the_postgresql_page_shows_the_rights_list():
    shown = re.findall(r"^GRANT .*", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert shown == grants("app")


@pytest.mark.postgres
@pytest.mark.parametrize("table", RIGHTS)
def test_the_doctor_asks_for_missing_rights_only(database, table):
    def findings_not_ok():
        return [f for f in examine(database.humble).findings if f.topic in ("rights", "schema") and f.level != "ok"]

    with psycopg.connect(database.url, autocommit=True) as owner:
        owner.execute(schema.as_sql())
        owner.execute("".join(grants(database.name)))
        assert findings_not_ok() == []
        for right in RIGHTS[table]:
            owner.execute(f"REVOKE {right} ON {table} FROM {database.name}")
            (finding,) = findings_not_ok()
            assert finding.advice == " ".join(grants(database.name, [table]))
            owner.execute(finding.advice)
            assert findings_not_ok() == []


@pytest.mark.postgres
def test_the_doctor_does_not_announce_an_upgrade_to_a_user_without_the_rights(database, monkeypatch):
    add_migration(monkeypatch)
    with psycopg.connect(database.url, autocommit=True) as owner:
        owner.execute(schema.as_sql())
        owner.execute("".join(grants(database.name)))
        owner.execute("UPDATE backstay_meta SET value = value - 1")
        owner.execute(f"GRANT CREATE ON SCHEMA public TO {database.name}")
    (finding,) = [f for f in examine(database.humble).findings if f.topic == "schema"]
    assert finding.level == "problem"
    assert finding.what.startswith(f"schema {schema.latest() - 1} of {schema.latest()}")
