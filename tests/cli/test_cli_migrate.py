"""`backstay migrate` creates the schema, or prints it for a user with the rights."""

from __future__ import annotations

import secrets
from types import SimpleNamespace

import psycopg
import pytest
from typer.testing import CliRunner

from backstay.cli import exit_codes
from backstay.cli.root import app
from backstay.doctor.examine import examine
from backstay.engine.postgres.batches.batch_connection import SWEEPS
from backstay.engine.postgres.schema import latest
from backstay.sync import Backstay
from backstay.testing.waiting import WITHIN

pytestmark = pytest.mark.postgres

#: µs since 1970.
LONG_PAST = 0


@pytest.fixture
def database(backstay_postgres):
    """An empty database, with the URLs of its owner and of a role without CREATE rights."""
    name = f"db_{secrets.token_hex(6)}"
    with psycopg.connect(backstay_postgres.admin_url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        admin.execute(f"CREATE ROLE {name} LOGIN")
        base = f"127.0.0.1:{backstay_postgres.port}/{name}"
        yield SimpleNamespace(name=name, owner=f"postgresql://backstay@{base}", app=f"postgresql://{name}@{base}")
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        admin.execute(f"DROP ROLE {name}")


def call(*args):
    return CliRunner().invoke(app, args, prog_name="backstay")


def test_migrate_reports_the_old_and_new_schema_version(database):
    first = call("migrate", database.owner)
    assert (first.exit_code, f"from schema 0 to {latest()}" in first.stdout) == (0, True)
    again = call("--url", database.owner, "migrate")
    assert (again.exit_code, f"up to date: schema {latest()}" in again.stdout) == (0, True)


def test_the_printed_schema_serves_a_user_without_create_rights(database):
    refused = call("migrate", database.app)
    assert refused.exit_code == exit_codes.ENGINE
    assert "backstay migrate --sql" in refused.stderr
    printed = call("migrate", "--sql").stdout
    grants = "\n".join(line.removeprefix("-- ") for line in printed.splitlines() if line.startswith("-- GRANT"))
    with psycopg.connect(database.owner, autocommit=True) as owner:
        owner.execute(printed)
        owner.execute(grants.replace("TO app", f"TO {database.name}"))
    do_everything(database.app)
    assert "up to date" in call("migrate", database.app).stdout
    levels = {finding.topic: finding.level for finding in examine(database.app).findings}
    assert (levels["schema"], levels["role"], levels.get("rights")) == ("ok", "ok", None)


def do_everything(url):
    """Send every kind of statement that a program uses."""
    with Backstay(url) as stay:
        with stay.lock("x", wait=0):
            assert [lock.name for lock in stay.locks.list()] == ["x"]
        stay.lock("y").acquire(wait=0, execution_id="execution")
        assert stay.locks.cleanup("execution").scopes == ("y",)
        with stay.hub.listen("news") as messages:
            stay.hub.publish("news", "new")
            assert messages.next(timeout=WITHIN).payload == "new"
        with stay.hub.listen_scheduled("mail") as scheduled:
            stay.hub.publish_scheduled("mail", 1)
            hint = scheduled.next(timeout=WITHIN).hint_id
        assert [stay.hub.take_hint(hint, 2), stay.hub.take_hint(hint, 2)] == [1, 0]
    with psycopg.connect(url, autocommit=True) as db:
        for sweep in SWEEPS:
            db.execute(sweep, {"now": LONG_PAST})


@pytest.mark.parametrize("url", ["sqlite:///no-such-folder/a.db", "redis://127.0.0.1:1/0"])
def test_other_engines_need_no_migration(url):
    done = call("migrate", url)
    assert done.exit_code == 0
    assert "Nothing to do" in done.stdout
