"""The n8n examples: the files under `after` are what the commands of their README make of `before`."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from patched import LabClient

from backstay.n8n.model import N8nWorkflow
from backstay.n8n.patch.patch import LimitOptions, LockOptions, add_limit, add_lock, remove_limit, remove_lock

EXAMPLES = Path(__file__).parents[3] / "examples" / "n8n"
CLEANUP = "error_handler_lock_cleanup"
ASKED = {
    "excel_report": LockOptions(scope="={{ 'excel-' + $json.body.fileId }}", ttl_seconds=600, max_wait_seconds=30),
    "nightly_batch": LockOptions(scope="={{ 'nightly' }}", ttl_seconds=32400, error_workflow=CLEANUP),
    "api_front": LimitOptions(scope="=quote-{{ $json.headers['x-user'] }}", limit=100, window_seconds=60),
}
ORDERS = 250


def read(folder, key):
    return N8nWorkflow.read(EXAMPLES / folder / f"{key}.template.json")


def patch_example(key):
    options = ASKED[key]
    return (add_lock if isinstance(options, LockOptions) else add_limit)(read("before", key), key, options)


@pytest.mark.parametrize("key", ASKED)
def test_the_after_files_equal_the_patched_before_files(key):
    patched = patch_example(key)
    for name, made in {key: patched.workflow, **patched.others}.items():
        assert (EXAMPLES / "after" / f"{name}.template.json").read_text() == made.text()
    assert patched.warnings == ()


@pytest.mark.parametrize("key", ASKED)
def test_removing_the_patch_restores_the_before_files(key):
    remove = remove_lock if isinstance(ASKED[key], LockOptions) else remove_limit
    others = {name: read("after", name) for name in patch_example(key).others}
    back = remove(read("after", key), key, others)
    assert back.workflow.text() == (EXAMPLES / "before" / f"{key}.template.json").read_text()


def test_the_after_folder_is_complete_and_the_readme_has_every_command():
    files = {path.name for path in (EXAMPLES / "after").iterdir()}
    assert files == {f"{name}.template.json" for key in ASKED for name in (key, *patch_example(key).others)}
    readme = (EXAMPLES / "README.md").read_text()
    for key, options in ASKED.items():
        (command,) = re.findall(rf"`(backstay n8n add-\S+ --workflow-key {key} .*)` \|$", readme, re.MULTILINE)
        # Split as a shell does; in double quotes it would expand $json.
        words = subprocess.run(["sh", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True)
        assert options.scope in words.stdout.splitlines()


@pytest.mark.redis
def test_the_patched_nightly_batch_runs(lab_client: LabClient):
    patched = patch_example("nightly_batch")
    lab_client.settings["workflows"]["nightly_batch_body"] = {"id": "work_body"}
    lab_client.settings["workflows"][CLEANUP] = {"id": "error_handler_lo"}
    for start in ("Every Night", "By Hand"):
        done = lab_client.run(patched.workflow, {"work_body": patched.others["nightly_batch_body"]}, node=start)
        assert (done.status, done.message) == ("success", "")
        (body,) = [one for one in done.of("work_body") if one.workflow_name.endswith("(locked body)")]
        assert body.items == [{"closed": ORDERS}]
        assert not lab_client.held("nightly")


@pytest.mark.redis
def test_the_patched_api_front_admits_requests_up_to_the_limit(lab_client: LabClient):
    plain = read("before", "api_front")
    limited = add_limit(
        plain,
        "api_front",
        LimitOptions(
            scope=f"={lab_client.scope}-{{{{ $json.headers['x-user'] }}}}", limit=1, window_seconds=10_000_000
        ),
    )
    items = [{"json": {"headers": {"x-user": "ada"}, "query": {}, "body": {}}}]
    first, second = (lab_client.run(limited.workflow, items=items, node="Request", mode="webhook") for _ in range(2))
    assert first.runs["Quote"][0].items == [{"user": "ada", "price": 19.9}]
    assert second.runs["Too Many?"][0].outputs[0][0]["json"]["rate_limit"]["allowed"] is False
    assert "Quote" not in second.runs
