"""Commands change the files of a workspace atomically and one at a time."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from backstay.errors import WorkspaceError
from backstay.n8n.workspace import journal
from backstay.n8n.workspace.files import PRIVATE, Files, resolve_inside
from backstay.n8n.workspace.init import create_missing_files
from backstay.n8n.workspace.workspace import Workspace

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def root(tmp_path):
    with Workspace(tmp_path / "w").edit() as view:
        create_missing_files(view, ["dev", "prod"])
    return tmp_path / "w"


def snapshot(root):
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and PRIVATE not in path.parts
    }


def change_files(view):
    """Create, update and delete files in one edit."""
    view.files.write("n8n-build/dev/new.json", b"{}")
    view.add_scope("dev", "a")
    view.add_scope("prod", "a")
    view.files.delete("n8n-workflows-template/.gitkeep")


def test_an_error_inside_an_edit_changes_no_file(root):
    before = snapshot(root)
    with pytest.raises(WorkspaceError, match="no environment is named 'late'"), Workspace.open(root).edit() as view:  # noqa: PT012 - a command
        change_files(view)
        view.add_scope("late", "a")
    assert snapshot(root) == before


def test_a_dry_run_changes_nothing_and_shows_the_diff(root):
    before = snapshot(root)
    with Workspace.open(root).edit(dry_run=True) as view:
        change_files(view)
    assert snapshot(root) == before
    diff = view.files.diff()
    assert "--- n8n-config/dev.yml" in diff
    assert "+  - a\n" in diff
    assert "--- /dev/null\n+++ n8n-build/dev/new.json" in diff
    assert [change.action for change in view.changes] == ["create", "update", "update", "delete"]


def test_a_dry_run_creates_no_folder(tmp_path):
    with Workspace(tmp_path / "new").edit(dry_run=True) as view:
        create_missing_files(view, ["dev"])
    assert view.changes
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("at", range(9))
def test_a_disk_error_at_any_step_changes_no_file(root, monkeypatch, at):
    before = snapshot(root)
    calls = iter(range(100))

    def fail(real):
        def call(*arguments, **options):
            if next(calls) == at:
                raise OSError(28, "No space left on device", "somewhere")
            return real(*arguments, **options)

        return call

    path = type(root)
    with monkeypatch.context() as patch:
        patch.setattr(path, "replace", fail(path.replace))
        patch.setattr(path, "unlink", fail(path.unlink))
        patch.setattr(journal.os, "fsync", fail(os.fsync))
        try:
            with Workspace.open(root).edit() as view:
                change_files(view)
        except WorkspaceError as refusal:
            assert "No space left" in str(refusal)  # noqa: PT017 - where it fails differs
        else:
            assert at == 0  # the clean-up before the edit, whose failure is ignored
            return
    with Workspace.open(root).edit():  # undoes what the failed command could not undo
        pass
    assert snapshot(root) == before


def edit_and_die(root, steps):
    """Commit the change and kill this process after `steps` renames and deletions."""

    def count(real):
        def call(*arguments, **options):
            nonlocal steps
            if steps == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            steps -= 1
            return real(*arguments, **options)

        return call

    path = type(root)
    path.replace, path.unlink = count(path.replace), count(path.unlink)
    with Workspace.open(root).edit() as view:
        change_files(view)


@pytest.mark.parametrize("steps", range(2, 9))
def test_the_next_command_undoes_a_killed_one(root, steps):
    before = snapshot(root)
    process = FORK.Process(target=edit_and_die, args=(root, steps))
    process.start()
    process.join()
    after = snapshot(root)
    pending = journal.is_pending(root)
    with Workspace.open(root).read_view() as view:
        notes = view.notes
    if pending:
        assert snapshot(root) == before
        assert "interrupted" in notes[0]
    else:  # the change was complete and the journal removed
        assert len([path for path in {**before, **after} if before.get(path) != after.get(path)]) == 4


def test_a_file_edited_after_a_crash_is_not_overwritten_and_named(root):
    process = FORK.Process(target=edit_and_die, args=(root, 3))
    process.start()
    process.join()
    assert journal.is_pending(root)
    mine = root / "n8n-config/dev.yml"
    mine.write_text("# mine\n")
    for _ in range(2):
        with pytest.raises(WorkspaceError, match=r"n8n-config/dev.yml was changed since"), Workspace.open(root).edit():
            pass
    assert mine.read_text() == "# mine\n"


def test_a_concurrent_edit_of_a_file_is_not_overwritten(root):
    with pytest.raises(WorkspaceError, match="changed by another process"), Workspace.open(root).edit() as view:  # noqa: PT012 - a command
        view.add_scope("dev", "a")
        (root / "n8n-config/dev.yml").write_text("lockScopes: [mine]\n")
    assert (root / "n8n-config/dev.yml").read_text() == "lockScopes: [mine]\n"


def add_scopes(root, names):
    for name in names:
        with Workspace.open(root).edit() as view:
            view.add_scope("dev", name)
            view.add_scope("prod", name)


def test_concurrent_commands_lose_no_update(root):
    batches = [[f"{one}-{n}" for n in range(8)] for one in range(4)]
    processes = [FORK.Process(target=add_scopes, args=(root, batch)) for batch in batches]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    wanted = {name for batch in batches for name in batch}
    for env in ("dev", "prod"):
        assert set(Workspace.open(root).scopes(env)) == wanted


def test_a_command_that_waits_too_long_for_another_one_fails(root):
    with (
        Workspace.open(root).edit(),
        pytest.raises(WorkspaceError, match="another command is running"),
        journal.exclusive(root, timeout=0.05),
    ):
        pytest.fail("two at once")


def test_file_permissions_are_kept(root):
    file = root / "n8n-config/dev.yml"
    file.chmod(0o600)
    with Workspace.open(root).edit() as view:
        view.add_scope("dev", "a")
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_view_cannot_be_changed_outside_of_edit(root):
    with pytest.raises(RuntimeError):
        Workspace.open(root).add_scope("dev", "a")


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "a\\b", "~/x", "link/x", "a\0b"])
def test_a_path_outside_the_workspace_is_refused(root, path):
    (root / "link").symlink_to("/etc")
    with pytest.raises(WorkspaceError, match=r"leads out|is outside|cannot be resolved"):
        resolve_inside(root, path)


def test_a_link_inside_is_followed_and_stays_a_link(root):
    (root / "shared.yml").write_text("lockScopes: []\n")
    env = root / "n8n-config/linked.yml"
    env.symlink_to("../shared.yml")
    with Workspace.open(root).edit() as view:
        view.add_scope("linked", "a")
    assert env.is_symlink()
    assert "- a" in (root / "shared.yml").read_text()


def test_a_folder_listing_includes_pending_changes(root):
    files = Files(root)
    files.write("n8n-config/new.yml", b"")
    files.delete("n8n-config/dev.yml")
    assert files.names("n8n-config", ".yml") == ["common", "deployment_order", "new", "prod"]


def test_the_journal_is_json_with_the_changed_paths(root):
    process = FORK.Process(target=edit_and_die, args=(root, 3))
    process.start()
    process.join()
    journaled = json.loads((root / PRIVATE / "journal.json").read_text())
    assert [entry["path"] for entry in journaled["files"]][:2] == ["n8n-build/dev/new.json", "n8n-config/dev.yml"]


@pytest.fixture
def read_only(root, monkeypatch):
    """A workspace on a read-only disk, simulated in os.open because root may write anywhere."""
    with Workspace.open(root).edit() as view:
        view.files.write("n8n-config/a.txt", b"a")
    opened = os.open

    def refused(path, flags, *more, **given):
        if str(path).startswith(str(root)) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return opened(path, flags, *more, **given)

    monkeypatch.setattr(os, "open", refused)
    monkeypatch.setattr(Path, "write_text", lambda *_: refused(root, os.O_WRONLY))
    return root


def test_a_read_only_workspace_can_be_read_and_dry_run(read_only):
    with Workspace.open(read_only).read_view() as view:
        assert view.files.read("n8n-config/a.txt") == b"a"
    with Workspace.open(read_only).edit(dry_run=True) as view:
        view.files.write("n8n-config/a.txt", b"b")
        assert "+b" in view.files.diff()


def test_a_read_only_workspace_cannot_be_edited(read_only):
    with pytest.raises(WorkspaceError, match="cannot be written: Read-only"), Workspace.open(read_only).edit():
        pass


def test_an_interrupted_change_that_cannot_be_undone_is_an_error(read_only):
    (read_only / PRIVATE / journal.JOURNAL).mkdir()
    with pytest.raises(WorkspaceError, match="a command was interrupted in"), Workspace.open(read_only).read_view():
        pass
