"""`backstay migrate --sql` prints SQL for one schema version, and that SQL changes no database of another version.

All tests here know one migration more than the package has, so that there is an older schema to upgrade from.
"""

from __future__ import annotations

import re

import psycopg
import pytest
from typer.testing import CliRunner

from backstay import EngineRefused, SchemaTooNew, sync
from backstay.cli import exit_codes
from backstay.cli.root import app
from backstay.doctor.examine import examine
from backstay.engine import migrations
from backstay.engine.postgres import schema
from backstay.engine.postgres.rights import grants
from support.synthetic_migration import JOBS, MIGRATION, add_migration, real

pytestmark = [pytest.mark.postgres, pytest.mark.usefixtures("one_more_migration")]

OLDER = range(1, real("postgres") + 1)
COMMAND = re.compile(r"`(backstay migrate --sql[^`]*)`")


@pytest.fixture
def one_more_migration(monkeypatch):
    add_migration(monkeypatch)


@pytest.fixture
def owner(database):
    with psycopg.connect(database.url, autocommit=True) as owner:
        yield owner


def version(db):
    ((found,),) = db.execute("SELECT value FROM backstay_meta WHERE key = 'schema'").fetchall()
    return found


def make(owner, version):
    """Bring an empty database to a schema version."""
    owner.execute(schema.META)
    for script in migrations.scripts("postgres")[:version]:
        owner.execute(script)
    owner.execute(schema.DONE, (version,))


def printed(command):
    done = CliRunner().invoke(app, command.split()[1:], prog_name="backstay")
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("old", [0, *OLDER])
def test_the_advised_command_upgrades_the_database(database, owner, old):
    if old:
        make(owner, old)
        owner.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {database.name}")
    with pytest.raises(EngineRefused) as refused, sync.Backstay(database.humble):
        pass
    (in_error,) = COMMAND.findall(str(refused.value))
    (advised,) = COMMAND.findall("".join(f.advice for f in examine(database.humble).findings if f.topic == "schema"))
    assert in_error == advised
    owner.execute(printed(advised))
    owner.execute("".join(grants(database.name)))
    assert version(owner) == schema.latest()
    assert owner.execute(JOBS).fetchall() == [(0,)]
    with sync.Backstay(database.humble) as stay, stay.lock("x", wait=0):
        pass


def test_the_script_for_an_older_version_has_only_the_migrations_since_then():
    script = printed(f"backstay migrate --sql --since {schema.latest() - 1}")
    assert MIGRATION in script
    assert "CREATE TABLE backstay_state" not in script
    assert f"VALUES ('schema', {schema.latest()})" in script


@pytest.mark.parametrize("old", OLDER)
def test_a_user_who_may_not_create_tables_is_refused_at_an_older_version_and_changes_nothing(database, owner, old):
    make(owner, old)
    owner.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {database.name}")
    message = rf"has schema {old}, needs {schema.latest()}, .*`backstay migrate --sql --since {old}`"
    with pytest.raises(EngineRefused, match=message), sync.Backstay(database.humble):
        pass
    done = CliRunner().invoke(app, ["migrate", database.humble], prog_name="backstay")
    assert (done.exit_code, done.stdout) == (exit_codes.ENGINE, "")
    assert f"backstay migrate --sql --since {old}" in done.stderr
    assert version(owner) == old
    assert owner.execute("SELECT to_regclass('backstay_synthetic')").fetchone() == (None,)


@pytest.mark.parametrize("since", [0, *OLDER])
def test_a_script_for_another_version_fails_and_changes_nothing(owner, since):
    make(owner, schema.latest())
    with pytest.raises(psycopg.errors.RaiseException, match=f"for schema {since}, .* has schema {schema.latest()}"):
        owner.execute(schema.as_sql(since))
    owner.execute("ROLLBACK")
    assert version(owner) == schema.latest()


@pytest.mark.parametrize("since", OLDER)
def test_a_script_for_an_older_version_fails_on_an_empty_database(owner, since):
    with pytest.raises(psycopg.errors.RaiseException, match=f"for schema {since}, .* has schema 0"):
        owner.execute(schema.as_sql(since))
    owner.execute("ROLLBACK")
    assert owner.execute("SELECT to_regclass('backstay_meta')").fetchone() == (None,)


def test_a_script_waits_for_a_migration_that_is_under_way(database, owner):
    with psycopg.connect(database.url) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", (schema.LOCK,))
        owner.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            owner.execute(schema.as_sql())
        owner.execute("ROLLBACK")
    owner.execute(schema.as_sql())
    assert version(owner) == schema.latest()


def test_a_script_sees_a_migration_that_committed_while_it_waited(database, owner):
    """This holds for a serializable transaction too, whose snapshot is older than the wait."""
    head = schema.as_sql().splitlines()
    assert head.pop() == "COMMIT;"
    with psycopg.connect(database.url, autocommit=True) as other:
        owner.execute("SET default_transaction_isolation = 'serializable'")
        owner.execute("\n".join(head[:2]))
        make(other, schema.latest())
        with pytest.raises(psycopg.errors.RaiseException, match=f"has schema {schema.latest()}"):
            owner.execute("\n".join(head[2:]))
        owner.execute("ROLLBACK")


def test_a_script_without_migrations_is_a_comment():
    lines = printed(f"backstay migrate --sql --since {schema.latest()}").splitlines()
    assert lines
    assert all(line.startswith("--") for line in lines)


def test_an_unknown_newer_version_is_refused():
    with pytest.raises(SchemaTooNew):
        schema.as_sql(schema.latest() + 1)
    done = CliRunner().invoke(app, ["migrate", "--sql", "--since", "99"], prog_name="backstay")
    assert (done.exit_code, done.stdout) == (exit_codes.ENGINE, "")


def test_the_since_option_requires_the_sql_option(database):
    done = CliRunner().invoke(app, ["migrate", "--since", "1", database.url], prog_name="backstay")
    assert done.exit_code == exit_codes.USAGE
