"""The examples for operators: what stands under `after` is what the commands in their README make of `before`."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from woven import Desk

from backstay.n8n.model import Workflow
from backstay.n8n.patch.patch import LimitOptions, LockOptions, add_limit, add_lock, remove_limit, remove_lock

EXAMPLES = Path(__file__).parents[2] / "examples" / "n8n"
CLEANUP = "error_handler_lock_cleanup"
ASKED = {
    "excel_report": LockOptions(scope="={{ 'excel-' + $json.body.fileId }}", ttl_seconds=600, max_wait_seconds=30),
    "nightly_batch": LockOptions(scope="={{ 'nightly' }}", ttl_seconds=32400, error_workflow=CLEANUP),
    "api_front": LimitOptions(scope="=quote-{{ $json.headers['x-user'] }}", limit=100, window_seconds=60),
}
ORDERS = 250


def read(folder, key):
    return Workflow.read(EXAMPLES / folder / f"{key}.template.json")


def weave(key):
    options = ASKED[key]
    return (add_lock if isinstance(options, LockOptions) else add_limit)(read("before", key), key, options)


@pytest.mark.parametrize("key", ASKED)
def test_what_comes_after_is_what_was_before_and_woven(key):
    woven = weave(key)
    for name, made in {key: woven.workflow, **woven.others}.items():
        assert (EXAMPLES / "after" / f"{name}.template.json").read_text() == made.text()
    assert woven.warnings == ()


@pytest.mark.parametrize("key", ASKED)
def test_what_was_before_comes_out_again(key):
    remove = remove_lock if isinstance(ASKED[key], LockOptions) else remove_limit
    others = {name: read("after", name) for name in weave(key).others}
    back = remove(read("after", key), key, others)
    assert back.workflow.text() == (EXAMPLES / "before" / f"{key}.template.json").read_text()


def test_nothing_else_lies_there_and_the_readme_names_every_example():
    files = {path.name for path in (EXAMPLES / "after").iterdir()}
    assert files == {f"{name}.template.json" for key in ASKED for name in (key, *weave(key).others)}
    readme = (EXAMPLES / "README.md").read_text()
    for key, options in ASKED.items():
        (command,) = re.findall(rf"`(backstay n8n add-\S+ --workflow-key {key} .*)` \|$", readme, re.MULTILINE)
        # As a shell reads it, which takes $json in double quotes for a variable of its own.
        words = subprocess.run(["sh", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True)
        assert options.scope in words.stdout.splitlines()


@pytest.mark.redis
def test_the_nightly_batch_runs_woven(desk: Desk):
    woven = weave("nightly_batch")
    desk.settings["workflows"]["nightly_batch_body"] = {"id": "work_body"}
    desk.settings["workflows"][CLEANUP] = {"id": "error_handler_lo"}
    for start in ("Every Night", "By Hand"):
        done = desk.run(woven.workflow, {"work_body": woven.others["nightly_batch_body"]}, node=start)
        assert (done.status, done.message) == ("success", "")
        (body,) = [one for one in done.of("work_body") if one.workflow_name.endswith("(locked body)")]
        assert body.items == [{"closed": ORDERS}]
        assert not desk.held("nightly")


@pytest.mark.redis
def test_the_api_front_lets_a_user_in_until_there_are_too_many(desk: Desk):
    plain = read("before", "api_front")
    limited = add_limit(
        plain,
        "api_front",
        LimitOptions(scope=f"={desk.scope}-{{{{ $json.headers['x-user'] }}}}", limit=1, window_seconds=10_000_000),
    )
    items = [{"json": {"headers": {"x-user": "ada"}, "query": {}, "body": {}}}]
    first, second = (desk.run(limited.workflow, items=items, node="Request", mode="webhook") for _ in range(2))
    assert first.runs["Quote"][0].items == [{"user": "ada", "price": 19.9}]
    assert second.runs["Too Many?"][0].outputs[0][0]["json"]["rate_limit"]["allowed"] is False
    assert "Quote" not in second.runs
