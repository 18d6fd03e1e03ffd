import json
import sqlite3
from contextlib import closing

import pytest

from support.command_line import eventually

HOLDER = {
    "lock_id",
    "fence",
    "exclusive",
    "execution_id",
    "workflow_id",
    "workflow_name",
    "locked_at",
    "expires_at",
}
WAITER = {
    "lock_id",
    "position",
    "waiting",
    "offered",
    "exclusive",
    "execution_id",
    "workflow_id",
    "workflow_name",
}


@pytest.fixture
def held(cli):
    """A lock held by another client."""
    lease = cli.backstay.lock("invoice:42", renew=False).acquire(
        lock_id="lock-1", execution_id="exec-1", workflow_id="wf-1", workflow_name="Billing"
    )
    yield lease
    cli.backstay.locks.force_release("invoice:42")


def test_ls_without_held_locks_reports_none(cli):
    assert cli.call("locks", "ls").stdout == "No lock is held.\n"
    assert cli.call("locks", "ls", "a:").stdout == "No lock that starts with 'a:' is held.\n"
    assert cli.json("locks", "ls") == {"locks": []}


def test_ls_shows_locks_and_their_holders(cli, held):
    result = cli.call("locks", "ls")
    head, line = result.stdout.splitlines()
    assert head.split("  ")[0] == "NAME"
    assert line.startswith("invoice:42  Billing (exec-1)")
    assert str(held.fence) in line
    assert "s ago" in line


def test_ls_reports_a_damaged_record_without_guessing_its_content(sqlite_cli, tmp_path):
    sqlite_cli.backstay.lock("invoice:42").acquire()
    with closing(sqlite3.connect(tmp_path / "backstay.db")) as db, db:
        db.execute("UPDATE backstay_state SET doc = 'rubbish'")
    _, line = sqlite_cli.call("locks", "ls").stdout.splitlines()
    assert line.split() == ["invoice:42", "(cannot", "be", "read)", *"?????"]


def test_ls_takes_a_prefix(cli, held):
    cli.backstay.lock("order:1").acquire()
    assert [lock["name"] for lock in cli.json("locks", "ls", "order:")["locks"]] == ["order:1"]
    assert [lock["name"] for lock in cli.json("locks", "ls")["locks"]] == ["invoice:42", "order:1"]


def test_the_shape_of_a_lock_in_json(cli, held):
    shown = cli.json("locks", "show", "invoice:42")
    assert cli.json("locks", "ls")["locks"] == [shown]
    (holder,) = shown.pop("holders")
    assert shown == {"name": "invoice:42", "held": True, "fence": str(held.fence), "capacity": 1, "queue": []}
    assert set(holder) == HOLDER
    assert holder["fence"] == str(held.fence)
    assert holder["execution_id"] == "exec-1"
    assert holder["locked_at"] < holder["expires_at"]


def test_the_shape_of_the_queue_in_json(cli, held):
    cli.waiting("invoice:42", "--execution-id", "exec-2", "--", "true")
    (waiter,) = cli.json("locks", "show", "invoice:42")["queue"]
    assert set(waiter) == WAITER
    assert waiter["position"] == 0
    assert waiter["execution_id"] == "exec-2"
    assert waiter["workflow_name"] == "true"
    assert waiter["waiting"] > 0
    assert waiter["offered"] is False


def test_show_lists_holders_and_queue(cli, held):
    cli.waiting("invoice:42", "--", "true")
    text = cli.call("locks", "show", "invoice:42").stdout
    assert text.startswith(f"invoice:42: capacity 1, fence {held.fence}\n")
    assert "Billing (exec-1)" in text
    assert "lock-1" in text
    assert "Waiting\nPOSITION" in text
    assert "true (" in text


def test_show_handles_semaphores_and_read_write_locks(cli):
    cli.backstay.semaphore("gpu", 4).acquire()
    cli.backstay.semaphore("gpu", 4).acquire()
    cli.backstay.rwlock("doc").read().acquire()
    assert cli.call("locks", "show", "gpu").stdout.startswith("gpu: capacity 4")
    assert cli.call("locks", "show", "doc").stdout.startswith("doc: capacity read-write")
    gpu, doc = sorted(cli.json("locks", "ls")["locks"], key=lambda lock: lock["name"], reverse=True)
    assert (gpu["capacity"], len(gpu["holders"])) == (4, 2)
    assert (doc["capacity"], doc["holders"][0]["exclusive"]) == (None, False)
    assert ") +1 " in cli.call("locks", "ls", "gpu").stdout


def test_show_of_a_free_lock_succeeds(cli):
    result = cli.call("locks", "show", "x")
    assert (result.exit_code, result.stdout) == (0, "'x' is free, and no caller waits for it.\n")
    free = {"name": "x", "held": False, "fence": "0", "capacity": None, "holders": [], "queue": []}
    assert cli.json("locks", "show", "x") == free


def test_release_by_lock_id_verifies_ownership(cli, held):
    refused = cli.call("locks", "release", "invoice:42", "--lock-id", "lock-2")
    assert refused.exit_code == 1
    assert "LOGIC ERROR: lock_id lock-2 does not hold 'invoice:42'; it is held by Billing" in refused.stderr
    assert not refused.stdout
    assert cli.inspect("invoice:42").held

    released = cli.call("locks", "release", "invoice:42", "--lock-id", "lock-1")
    assert (released.exit_code, released.stdout) == (0, "Released 'invoice:42'.\n")
    assert cli.is_free("invoice:42")


def test_release_of_a_free_lock_succeeds(cli):
    again = cli.call("locks", "release", "x", "--lock-id", "lock-1")
    assert (again.exit_code, again.stdout) == (0, "'x' was already free; nothing changed.\n")
    shape = {"name": "x", "lock_id": "lock-1", "released": True, "idempotent": True}
    assert cli.json("locks", "release", "x", "--lock-id", "lock-1") == shape


def test_force_releases_the_lock_and_advances_the_fence(cli, held):
    result = cli.call("locks", "release", "invoice:42", "--force")
    assert result.exit_code == 0
    assert f"Released 'invoice:42', held by Billing (exec-1) with fence {held.fence}." in result.stdout
    fence = cli.inspect("invoice:42").fence
    assert fence > held.fence
    assert f"The fence is now {fence}" in result.stdout
    assert cli.is_free("invoice:42")


def test_the_shape_of_a_forced_release_in_json(cli, held):
    forced = cli.json("locks", "release", "invoice:42", "--force")
    (holder,) = forced.pop("holders")
    assert set(holder) == HOLDER
    assert int(forced.pop("fence")) > held.fence
    assert forced == {"name": "invoice:42", "released": True}


def test_force_on_a_free_lock_fails(cli):
    result = cli.call("locks", "release", "x", "--force")
    assert result.exit_code == 1
    assert result.stderr == "backstay: 'x' is not held\n"


def test_cleanup_releases_the_locks_of_the_execution(cli, held):
    mine = cli.backstay.lock("mine", renew=False).acquire()
    result = cli.json("locks", "cleanup", "--execution-id", "exec-1")
    assert result == {
        "execution_id": "exec-1",
        "cleaned": True,
        "cleaned_count": 1,
        "scopes": ["invoice:42"],
        "reason": "",
    }
    assert cli.is_free("invoice:42")
    assert cli.inspect("mine").holders[0].lock_id == mine.id


def test_cleanup_is_limited_to_the_given_scopes(cli, held):
    nothing = cli.call("locks", "cleanup", "--execution-id", "exec-1", "--scope", "other")
    assert nothing.exit_code == 0
    assert nothing.stdout.startswith("Nothing to release: execution exec-1 holds none")
    done = cli.call("locks", "cleanup", "--execution-id", "exec-1", "--scope", "other", "--scope", "invoice:42")
    assert done.stdout == "Released 1: 'invoice:42'.\n"


def test_control_characters_in_a_name_are_escaped(cli):
    name = "a\x1b[31m\nb [bold]c[/bold]"
    cli.backstay.lock(name, renew=False).acquire(workflow_name="evil\r\nname")
    for args in (("locks", "ls"), ("locks", "show", name)):
        text = cli.call(*args).stdout
        assert "\x1b" not in text
        assert r"a\x1b[31m\nb [bold]c[/bold]" in text
        assert r"evil\r\nname" in text
    assert cli.json("locks", "ls")["locks"][0]["name"] == name


def test_long_names_are_not_truncated_in_a_pipe(cli):
    name = "n" * 500
    cli.backstay.lock(name, renew=False).acquire()
    assert name in cli.run("locks", "ls").stdout


def test_a_real_process_prints_the_same_json(cli, held):
    done = cli.run("locks", "ls", "--json")
    assert json.loads(done.stdout)["locks"][0]["name"] == "invoice:42"
    assert not done.stderr


def test_namespaces_do_not_see_one_another(cli, held):
    assert cli.call("--namespace", "elsewhere", "locks", "ls").stdout == "No lock is held.\n"


def test_a_forced_release_serves_the_next_waiter(cli, held):
    waiter = cli.waiting("invoice:42", "--", "true")
    cli.call("locks", "release", "invoice:42", "--force")
    assert waiter.wait(30) == 0
    eventually(lambda: cli.is_free("invoice:42"), "it is free")
