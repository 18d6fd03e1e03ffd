"""Inline bodies on a full n8n server: the error workflow releases their lock, and over HTTP no execution can be
retried.
"""

from __future__ import annotations

import secrets

import pytest
from deployed_workflow import (
    WITHIN,
    WORK,
    is_free,
)
from lab.runner import node
from server_bodies import broken, fails_once, inline_body, reply
from server_checks import (
    count_runs,
    leaves_nothing_to_retry,
)

from backstay.testing.waiting import eventually

pytestmark = [pytest.mark.n8n_server, pytest.mark.redis]


def test_on_http_a_failed_inline_body_leaves_no_execution_to_retry(deploy_http, call_locks):
    body, options = inline_body(*fails_once())
    work = deploy_http(*body, **options)
    assert work.wiring == "inline"
    assert work.hit()[0] == 200  # the response is sent before the failure
    assert leaves_nothing_to_retry(work, call_locks)
    assert (count_runs(work), len(work.executions("success", "lock_acquisition"))) == (1, 1)
    assert work.hit()[0] == 200  # a new execution succeeds
    assert eventually(lambda: work.executions("success"), WITHIN)
    assert len(work.executions("success", "lock_acquisition")) == 2


def test_on_http_a_suspended_inline_body_that_fails_leaves_no_execution_to_retry(deploy_http, call_locks):
    pause = node("Pause", "wait", 1.1, {"resume": "webhook", "options": {}}, webhookId=secrets.token_hex(8))
    body, options = inline_body(pause, broken())
    work = deploy_http(*body, **options)
    assert work.hit()[0] == 200
    assert eventually(lambda: [status for _, status in work.shown(WORK)] == ["waiting"], WITHIN)
    ((suspended, _),) = work.shown(WORK)
    assert call_locks(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[0] == 409
    assert work.server.call("GET", f"/webhook-waiting/{suspended}")[0] == 200
    assert leaves_nothing_to_retry(work, call_locks)


def test_on_http_a_crashed_inline_body_leaves_no_execution_to_retry(deploy_http, call_locks):
    body, options = inline_body(*fails_once(seconds=20))
    work = deploy_http(*body, **options)
    assert work.hit()[0] == 200
    assert eventually(lambda: count_runs(work) == 1, WITHIN)  # in the body
    work.server.crash()
    assert leaves_nothing_to_retry(work, call_locks)
    assert count_runs(work) == 1


def test_on_http_a_stopped_inline_body_leaves_no_execution_to_retry(deploy_http, call_locks):
    body, options = inline_body(*fails_once(seconds=20))
    work = deploy_http(*body, **options)
    assert work.hit()[0] == 200
    assert eventually(lambda: count_runs(work) == 1, WITHIN)
    (running,) = work.executions("running")
    assert work.server.call("POST", f"/rest/executions/{running['id']}/stop")[0] == 200
    assert eventually(lambda: work.shown(WORK) == [], WITHIN)
    assert work.server.call("POST", f"/rest/executions/{running['id']}/retry", {})[0] == 404
    assert count_runs(work) == 1
    # n8n 1 starts no error workflow for a stop during a Wait: the lock ends with its TTL.
    assert call_locks(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[0] == 409


def test_the_error_workflow_releases_the_lock_of_a_failed_inline_body(deploy, redis):
    """n8n 2.x starts only published error workflows; push publishes it."""
    work = deploy(reply(), broken(), response_mode="responseNode", error_workflow="error_handler_lock_cleanup")
    assert work.wiring == "inline"
    work.hit()
    assert eventually(lambda: work.executions("success", "error_handler_lock_cleanup"), WITHIN)
    assert is_free(redis, work.scope)
