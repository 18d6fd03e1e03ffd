"""Behaviour that needs a full n8n server: a deployed workflow behind a webhook, stopped by its user, retried after a
failure. Where stock nodes cannot give a guarantee, the test records what happens instead.
"""

from __future__ import annotations

import json
import secrets
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from itertools import pairwise

import pytest
from lab.runner import calling, hydrated, node
from redis import Redis

from backstay import sync as blocking
from backstay.interop.n8n_wire import keys
from backstay.n8n.model import Workflow
from backstay.n8n.patch.patch import LockOptions, add_lock
from backstay.n8n.primitives import KEYS, primitive
from backstay.n8n.sync import sync
from backstay.n8n.sync.client import Client
from backstay.n8n.sync.create_placeholders import create_placeholders
from backstay.n8n.sync.state import State
from backstay.testing.waiting import eventually

pytestmark = [pytest.mark.n8n_server, pytest.mark.redis]

WORK = "work"
WITHIN = 120.0


class Deployed:
    """A patched workflow behind a webhook, pushed with its primitives to a real n8n."""

    def __init__(self, server, transport, credential, body, url="", answers="lastNode", **options):
        self.server = server
        self.client = Client(server.url, server.key)
        self.scope = f"full-{secrets.token_hex(4)}"
        self.path = f"hook-{secrets.token_hex(4)}"
        name, kind, data = credential
        self.credential = self.client.create_credential(name, kind, data)
        parameters = {"path": self.path, "httpMethod": "POST", "responseMode": answers, "options": {}}
        hook = node("Hook", "webhook", 2, parameters, webhookId=self.path)
        names = ["Hook", *(one["name"] for one in body)]
        lines = {a: {"main": [[{"node": b, "type": "main", "index": 0}]]} for a, b in pairwise(names)}
        plain = Workflow(
            {"name": WORK, "nodes": [hook, *body], "connections": lines, "settings": {"executionOrder": "v1"}}
        )
        patched = add_lock(plain, WORK, LockOptions(self.scope, 600, 60, transport=transport, **options))
        self.wiring = patched.wiring
        templates = {**{key: primitive(key, transport) for key in KEYS}, **patched.others, WORK: patched.workflow}
        self.state = State()
        minted = create_placeholders(self.client, templates, self.state)
        settings = {
            "workflows": {change.key: {"id": change.id} for change in minted},
            "credentials": {name: {"id": self.credential, "name": name}},
            "backstay": {"url": url},
            "lockScopes": [self.scope],
        }
        built = {key: Workflow(hydrated(one, key, settings)) for key, one in templates.items()}
        sync.push(self.client, built, self.state)
        self.id = self.state.workflows[WORK].id
        self.client.publish(self.id)  # activates its webhook; push leaves that to the operator

    def hit(self, timeout=WITHIN):
        return self.server.call("POST", f"/webhook/{self.path}", {"n": 1}, timeout)

    def executions(self, status="", of=WORK):
        return self.client.executions(workflow_id=self.state.workflows[of].id, status=status, limit=50)

    def shown(self, name):
        """Return ids and states of the executions that the editor lists for a workflow, oldest first."""
        listed = self.server.call("GET", "/rest/executions?limit=50")[1]["data"]["results"]
        ids = {known.id for known in self.state.workflows.values()}
        found = [one for one in listed if one["workflowName"] == name and one["workflowId"] in ids]
        return sorted(((one["id"], one["status"]) for one in found), key=lambda one: int(one[0]))

    def output_of(self, execution, name):
        """Return the first output item of a node."""
        listed = self.client._call("GET", f"/executions/{execution}", query={"includeData": "true"})
        return listed["data"]["resultData"]["runData"][name][0]["data"]["main"][0][0]["json"]

    def close(self):
        for known in self.state.workflows.values():
            self.client.delete(known.id)
        self.client.delete_credential(self.credential)


@contextmanager
def deploying_redis(server, backstay_redis):
    made = []

    def make(*body, **options):
        data = {"host": "127.0.0.1", "port": backstay_redis.port, "database": 0, "ssl": False}
        made.append(Deployed(server, "redis", ("redis", "redis", data), body, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@contextmanager
def deploying_http(server, backstay_server):
    made = []

    def make(*body, **options):
        url, token = backstay_server
        data = {"name": "Authorization", "value": f"Bearer {token}"}
        made.append(Deployed(server, "http", ("backstay", "httpHeaderAuth", data), body, url, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def deploy(n8n_server, backstay_redis):
    with deploying_redis(n8n_server, backstay_redis) as make:
        yield make


@pytest.fixture
def deploy_http(n8n_server, backstay_server):
    with deploying_http(n8n_server, backstay_server) as make:
        yield make


@pytest.fixture
def deploy_queue(n8n_queue, backstay_server):
    """Deploys over http to an n8n in queue mode."""
    with deploying_http(n8n_queue, backstay_server) as make:
        yield make


@pytest.fixture
def deploy_redis_queue(n8n_queue, backstay_redis):
    with deploying_redis(n8n_queue, backstay_redis) as make:
        yield make


@pytest.fixture
def redis(backstay_redis):
    with Redis.from_url(backstay_redis.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def stay(backstay_redis):
    with blocking.Backstay(backstay_redis.url) as made:
        yield made


@pytest.fixture
def ask(backstay_server):
    """Calls the lock API of the Backstay server directly, without n8n; returns status and JSON."""
    url, token = backstay_server
    headers = {"Authorization": f"Bearer {token}", "content-type": "application/json"}

    def ask(scope, verb, **body):
        place = f"{url}/api/locks/{scope}/{verb}"
        request = urllib.request.Request(place, json.dumps(body).encode(), headers, method="POST")  # noqa: S310 - loopback
        try:
            with urllib.request.urlopen(request, timeout=60) as found:  # noqa: S310 - loopback
                return found.status, json.load(found)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    return ask


def free(redis, scope):
    return not redis.exists(keys.lock_key(scope), keys.meta_key(scope))


def answer(name="Body"):
    return node(name, "set", 3.4, {"mode": "raw", "jsonOutput": '={{ { "done": true } }}', "options": {}})


def test_a_pushed_workflow_acquires_and_releases_the_lock(deploy, redis):
    work = deploy(answer())
    status, body, _ = work.hit()
    assert (status, body) == (200, {"done": True})
    assert free(redis, work.scope)


def test_an_execution_waits_for_a_lock_held_by_python(deploy, redis, stay):
    work = deploy(answer())
    lease = stay.lock(work.scope, wire="n8n", ttl=300).acquire()
    answers = []
    caller = threading.Thread(target=lambda: answers.append(work.hit()))
    caller.start()
    assert eventually(lambda: work.executions("running", "lock_acquisition"), WITHIN)
    assert answers == []
    lease.release()
    caller.join(WITHIN)
    assert answers[0][0] == 200
    assert free(redis, work.scope)


def test_a_failed_body_leaves_no_lock_and_its_retry_runs_unlocked(deploy, redis):
    """n8n retries from the failed node, so the lock before it is not taken again. Over redis this is a documented
    limit: a retried workflow fails again without running anything, a retried body execution runs unlocked.
    """
    work = deploy(answer("First"), node("Fails", "stopAndError", 1, {"errorMessage": "it fails"}))
    status, _, _ = work.hit()
    assert status >= 400
    assert eventually(lambda: free(redis, work.scope), WITHIN)
    assert eventually(lambda: work.executions("error"), WITHIN)
    failed = work.executions("error")[0]
    before = len(work.executions(of="lock_acquisition"))
    work.client.retry_execution(failed["id"])
    assert eventually(lambda: len(work.executions("error")) > 1, WITHIN)
    assert len(work.executions(of="lock_acquisition")) == before
    assert free(redis, work.scope)
    body = f"{WORK}_body"
    known = work.executions("error", body)  # the call of the body, and the body
    for execution in known:
        start_retry(work, execution["id"]).join(WITHIN)
    assert eventually(lambda: len(work.executions("error", body)) > 2 * len(known), WITHIN)
    assert len(work.executions(of="lock_acquisition")) == before


def test_the_waiter_of_a_stopped_execution_keeps_polling_and_its_lock_ends_with_the_ttl(deploy, redis, stay):
    """Stop ends only the caller. The acquire that it waits for keeps polling and takes the lock when it is free; only
    the TTL releases that. On the http transport an unconfirmed grant expires within seconds.
    """
    work = deploy(answer())
    lease = stay.lock(work.scope, wire="n8n", ttl=300).acquire()
    caller = threading.Thread(target=work.hit, args=(30,))
    caller.start()
    assert eventually(lambda: work.executions("running", "lock_acquisition"), WITHIN)
    (running,) = work.executions("running")
    status, _, _ = work.server.call("POST", f"/rest/executions/{running['id']}/stop")
    assert status == 200
    assert eventually(lambda: not work.executions("running"), WITHIN)
    caller.join(WITHIN)
    assert work.executions("running", "lock_acquisition")  # it keeps polling
    lease.release()
    assert eventually(lambda: redis.exists(keys.meta_key(work.scope)), WITHIN)
    assert 0 < redis.ttl(keys.lock_key(work.scope)) <= 600
    assert eventually(lambda: not work.executions("running", "lock_acquisition"), WITHIN)
    assert not free(redis, work.scope)
    assert stay.locks.force_release(work.scope, wire="n8n").holders


def counted(body):
    """Return how often the body ran, counted by its first node."""
    return len(body.executions("success", "rate_limit_check"))


def fails_once(seconds=0):
    """Return a body that counts on the server, waits, and fails the first time."""
    inputs = {"scope": secrets.token_hex(4), "limit": 1, "windowSeconds": 10_000_000}
    first = "={{ $('Count').first().json.allowed ? 'no object' : { done: true } }}"
    return (
        calling("Count", "{{@:env:workflows.rate_limit_check.id}}", inputs),
        node("Pause", "wait", 1.1, {"amount": seconds, "unit": "seconds"}),
        node("Broken", "set", 3.4, {"mode": "raw", "jsonOutput": first, "options": {}}),
    )


def run_and_fail_once(work):
    """Run the workflow, let its body fail once and return the id of the execution."""
    status, body, _ = work.hit()
    assert status >= 400 or body is None  # n8n's reply when the response node did not run
    assert eventually(lambda: work.executions("error"), WITHIN)
    assert counted(work) == 1
    (failed,) = work.executions("error")
    return failed["id"]


def start_retry(work, execution):
    """Retry an execution in a thread, as the editor does; n8n replies when the retry has ended."""
    caller = threading.Thread(target=work.server.call, args=("POST", f"/rest/executions/{execution}/retry", {}, WITHIN))
    caller.start()
    return caller


def test_on_http_a_retry_acquires_the_lock_again_and_runs_the_body_under_it(deploy_http, ask):
    work = deploy_http(*fails_once(seconds=5))
    failed = run_and_fail_once(work)
    assert ask(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[0] == 200
    ask(work.scope, "release", lock_id="probe")
    caller = start_retry(work, failed)
    assert eventually(lambda: counted(work) == 2, WITHIN)  # in the body now
    status, held = ask(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)
    assert status == 409, held
    caller.join(WITHIN)
    (again,) = work.executions("success")
    assert again["retryOf"] == failed
    assert [one["id"] for one in work.executions("error")] == [failed]
    first, second = reversed(work.executions("success", "lock_acquisition"))
    grants = [work.output_of(one["id"], "Build Acquire Output") for one in (first, second)]
    assert [grant["execution_id"] for grant in grants] == [failed, again["id"]]
    assert len({grant["lock_id"] for grant in grants}) == 2
    assert len(work.executions("success", "lock_release")) == 2
    assert ask(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[0] == 200
    ask(work.scope, "release", lock_id="probe")


def test_on_http_a_retry_waits_for_another_holder(deploy_http, ask):
    work = deploy_http(*fails_once())
    failed = run_and_fail_once(work)
    assert ask(work.scope, "acquire", lock_id="python", ttl_seconds=300)[0] == 200

    def waiting():
        return ask(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[1]["count"] == 2

    caller = start_retry(work, failed)
    assert eventually(waiting, WITHIN)  # one holds it, one waits
    assert (counted(work), work.executions("success")) == (1, [])
    ask(work.scope, "release", lock_id="python")
    caller.join(WITHIN)
    assert (counted(work), len(work.executions("success"))) == (2, 1)


def test_on_http_two_retries_of_one_execution_run_one_after_the_other(deploy_http, ask):
    work = deploy_http(*fails_once(seconds=3))
    failed = run_and_fail_once(work)
    both = [start_retry(work, failed) for _ in range(2)]
    for caller in both:
        caller.join(WITHIN)
    assert (counted(work), len(work.executions("success"))) == (3, 2)
    grants = sorted(one["stoppedAt"] for one in work.executions("success", "lock_acquisition"))
    releases = sorted(one["startedAt"] for one in work.executions("success", "lock_release"))
    assert grants[1] < releases[1] <= grants[2] < releases[2]


def test_on_http_only_the_locked_workflow_itself_can_be_retried(deploy_http, ask):
    """n8n saves no failed executions of the body or of its calling workflow."""
    work = deploy_http(*fails_once())
    failed = run_and_fail_once(work)
    for what in ("locked body", "locked retry"):
        assert work.shown(f"{WORK} ({what})") == []
    listed = work.server.call("GET", "/rest/executions?limit=50")[1]["data"]["results"]
    last = max(int(one["id"]) for one in listed)
    for other in range(int(failed) + 1, last + 1):
        status, reply_body, _ = work.server.call("POST", f"/rest/executions/{other}/retry", {})
        assert status >= 400, reply_body
    assert counted(work) == 1
    assert ask(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[0] == 200
    ask(work.scope, "release", lock_id="probe")


def test_on_http_a_retry_after_a_failed_acquire_takes_the_lock(deploy_http, ask):
    """The failed node is the acquire, so n8n's retry starts there."""
    work = deploy_http(answer(), fail_fast=True)
    assert ask(work.scope, "acquire", lock_id="python", ttl_seconds=300)[0] == 200
    assert work.hit()[0] >= 400
    assert eventually(lambda: work.executions("error"), WITHIN)
    ask(work.scope, "release", lock_id="python")
    start_retry(work, work.executions("error")[0]["id"]).join(WITHIN)
    assert len(work.executions("success")) == 1
    assert len(work.executions("success", "lock_release")) == 1


def test_on_http_a_crashed_execution_is_retried_under_the_lock_and_its_body_cannot_be_retried(deploy_http, ask):
    """n8n saves nothing of a crashed body; the error workflow releases its lock, and a retry starts at the trigger."""
    work = deploy_http(*fails_once(seconds=20), error_workflow="error_handler_lock_cleanup")
    caller = threading.Thread(target=work.hit)
    caller.start()
    assert eventually(lambda: counted(work) == 1, WITHIN)  # in the body
    work.server.crash()
    caller.join(WITHIN)
    assert eventually(lambda: work.executions("success", "error_handler_lock_cleanup"), WITHIN)
    assert eventually(lambda: [status for _, status in work.shown(WORK)] == ["crashed"], WITHIN)
    for what in ("locked body", "locked retry"):
        assert eventually(lambda what=what: work.shown(f"{WORK} ({what})") == [], WITHIN)
    ((crashed, _),) = work.shown(WORK)
    start_retry(work, crashed).join(WITHIN)
    assert (counted(work), len(work.executions("success"))) == (2, 1)
    assert len(work.executions("success", "lock_acquisition")) == 2


def reply():
    return node("Reply", "respondToWebhook", 1.1, {"respondWith": "firstIncomingItem", "options": {}})


def test_on_http_a_final_response_is_sent_after_the_release_and_its_body_is_retried_under_the_lock(deploy_http, ask):
    """The response node stays with the webhook, the rest becomes a sub-workflow, so a retry acquires the lock again."""
    work = deploy_http(*fails_once(seconds=3), reply(), answers="responseNode")
    assert work.wiring == "sub-workflow"
    caller = start_retry(work, run_and_fail_once(work))
    assert eventually(lambda: counted(work) == 2, WITHIN)  # in the body now
    assert ask(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[0] == 409
    caller.join(WITHIN)
    assert len(work.executions("success")) == 1
    assert work.hit()[:2] == (200, {"done": True})
    assert (counted(work), len(work.executions("success", "lock_release"))) == (3, 3)
    assert ask(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[0] == 200
    ask(work.scope, "release", lock_id="probe")


def leaves_nothing_to_retry(work, ask):
    """Check that the error workflow released the lock and that n8n has no execution left that could be retried."""
    assert eventually(lambda: work.executions("success", "error_handler_lock_cleanup"), WITHIN)
    assert eventually(lambda: work.shown(WORK) == [], WITHIN)
    listed = work.server.call("GET", "/rest/executions?limit=50")[1]["data"]["results"]
    last = max(int(one["id"]) for one in listed)
    for other in range(last, max(0, last - 10), -1):
        status, reply_body, _ = work.server.call("POST", f"/rest/executions/{other}/retry", {})
        assert status >= 400, reply_body
    assert ask(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[0] == 200
    ask(work.scope, "release", lock_id="probe")
    return True


def inline_body(*body, **options):
    """Return a body that responds first and so must stay inline, with the options that accept this."""
    given = [one | {"alwaysOutputData": True} for one in body]
    accepted = {"error_workflow": "error_handler_lock_cleanup", "in_place": True}
    return (reply(), *given), {"answers": "responseNode", **accepted, **options}


def test_on_http_a_failed_inline_body_leaves_no_execution_to_retry(deploy_http, ask):
    body, options = inline_body(*fails_once())
    work = deploy_http(*body, **options)
    assert work.wiring == "inline"
    assert work.hit()[0] == 200  # the answer came first
    assert leaves_nothing_to_retry(work, ask)
    assert (counted(work), len(work.executions("success", "lock_acquisition"))) == (1, 1)
    assert work.hit()[0] == 200  # a new execution succeeds
    assert eventually(lambda: work.executions("success"), WITHIN)
    assert len(work.executions("success", "lock_acquisition")) == 2


def test_on_http_a_suspended_inline_body_that_fails_leaves_no_execution_to_retry(deploy_http, ask):
    pause = node("Pause", "wait", 1.1, {"resume": "webhook", "options": {}}, webhookId=secrets.token_hex(8))
    body, options = inline_body(pause, broken())
    work = deploy_http(*body, **options)
    assert work.hit()[0] == 200
    assert eventually(lambda: [status for _, status in work.shown(WORK)] == ["waiting"], WITHIN)
    ((suspended, _),) = work.shown(WORK)
    assert ask(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[0] == 409
    assert work.server.call("GET", f"/webhook-waiting/{suspended}")[0] == 200
    assert leaves_nothing_to_retry(work, ask)


def test_on_http_a_crashed_inline_body_leaves_no_execution_to_retry(deploy_http, ask):
    body, options = inline_body(*fails_once(seconds=20))
    work = deploy_http(*body, **options)
    assert work.hit()[0] == 200
    assert eventually(lambda: counted(work) == 1, WITHIN)  # in the body
    work.server.crash()
    assert leaves_nothing_to_retry(work, ask)
    assert counted(work) == 1


def test_on_http_a_stopped_inline_body_leaves_no_execution_to_retry(deploy_http, ask):
    body, options = inline_body(*fails_once(seconds=20))
    work = deploy_http(*body, **options)
    assert work.hit()[0] == 200
    assert eventually(lambda: counted(work) == 1, WITHIN)
    (running,) = work.executions("running")
    assert work.server.call("POST", f"/rest/executions/{running['id']}/stop")[0] == 200
    assert eventually(lambda: work.shown(WORK) == [], WITHIN)
    assert work.server.call("POST", f"/rest/executions/{running['id']}/retry", {})[0] == 404
    assert counted(work) == 1
    # n8n 1 starts no error workflow for a stop during a Wait: the lock ends with its TTL.
    assert ask(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[0] == 409


def broken():
    """Return a node that fails."""
    return node("Fails", "set", 3.4, {"mode": "raw", "jsonOutput": "={{ 'no object' }}", "options": {}})


def test_the_error_workflow_releases_the_lock_of_a_failed_inline_body(deploy, redis):
    """n8n 2.x starts only published error workflows; push publishes it."""
    work = deploy(reply(), broken(), answers="responseNode", error_workflow="error_handler_lock_cleanup")
    assert work.wiring == "inline"
    work.hit()
    assert eventually(lambda: work.executions("success", "error_handler_lock_cleanup"), WITHIN)
    assert free(redis, work.scope)


def test_n8n_reports_success_for_a_suspended_sub_workflow_that_fails(deploy, redis, monkeypatch):
    """The reason why such a body is refused: the lock is correct, but the caller reports success over a failure."""
    monkeypatch.setattr("backstay.n8n.analysis.waits.suspends", lambda _: "never")
    pause = node("Pause", "wait", 1.1, {"resume": "webhook", "options": {}}, webhookId=secrets.token_hex(8))
    work = deploy(answer("First"), pause, broken())
    assert work.wiring == "sub-workflow"
    caller = threading.Thread(target=work.hit, args=(60,))
    caller.start()
    body = f"{WORK} (locked body)"
    assert eventually(lambda: [status for _, status in work.shown(WORK)] == ["waiting"], WITHIN)
    (_, _), (suspended, _) = work.shown(body)  # the call of the body, and the body
    assert not free(redis, work.scope)
    assert work.server.call("GET", f"/webhook-waiting/{suspended}")[0] == 200
    assert eventually(lambda: [status for _, status in work.shown(WORK)] == ["success"], WITHIN)
    assert [status for _, status in work.shown(body)] == ["success", "error"]
    assert free(redis, work.scope)
    caller.join(WITHIN)


def test_on_http_a_grant_to_the_waiter_of_a_stopped_execution_expires(deploy_http, ask):
    """The stopped execution cannot confirm the grant, so it expires within seconds."""
    work = deploy_http(answer())

    def take():
        return ask(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)

    assert ask(work.scope, "acquire", lock_id="python", ttl_seconds=300)[0] == 200
    caller = threading.Thread(target=work.hit, args=(30,))
    caller.start()
    assert eventually(lambda: take()[1]["count"] == 2, WITHIN)  # one holds it, one waits
    (running,) = work.executions("running")
    assert work.server.call("POST", f"/rest/executions/{running['id']}/stop")[0] == 200
    caller.join(WITHIN)
    ask(work.scope, "release", lock_id="python")
    assert take()[0] == 409  # the waiter kept polling and was granted the lock
    assert eventually(lambda: take()[0] == 200, WITHIN)
    ask(work.scope, "release", lock_id="probe")


# ── stop or timeout of the caller while its body runs as a sub-workflow: n8n does not stop the body ──

CLEAN_UP = "error_handler_lock_cleanup"
LOCKED_BODY = f"{WORK} (locked body)"
on_error = pytest.mark.parametrize("error_workflow", [CLEAN_UP, ""])


def slow(seconds):
    """Return a body that counts, waits, and counts again."""

    def count(name):
        inputs = {"scope": secrets.token_hex(4), "limit": 1, "windowSeconds": 10_000_000}
        return calling(name, "{{@:env:workflows.rate_limit_check.id}}", inputs)

    return count("Count"), node("Pause", "wait", 1.1, {"amount": seconds, "unit": "seconds"}), count("Count Again")


def held_on_redis(work, redis):
    return lambda: not free(redis, work.scope)


def held_on_http(work, ask):
    def held():
        status, _ = ask(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)
        return status == 409 or ask(work.scope, "release", lock_id="probe")[0] != 200

    return held


def start_until_in_body(work):
    """Start the workflow and wait until its body runs; return the execution id and the requesting thread."""
    caller = threading.Thread(target=work.hit, args=(60,))
    caller.start()
    assert eventually(lambda: counted(work) == 1, WITHIN)
    (running,) = work.executions("running")
    return running["id"], caller


def stop(work, execution):
    assert work.server.call("POST", f"/rest/executions/{execution}/stop")[0] == 200


def is_held_while_the_body_runs(work, held):
    """Poll the lock until the body has ended."""
    running = True
    while running:
        was_held = held()
        running = "running" in [status for _, status in work.shown(LOCKED_BODY)]
        assert was_held or not running
        assert not running or not work.executions(of=CLEAN_UP)  # no clean-up was attempted
    return True


def check_held_after_a_stop(work, held):
    """The lock is held while the body runs and afterwards: only its TTL releases it, and n8n's retry runs nothing."""
    stopped, caller = start_until_in_body(work)
    stop(work, stopped)
    assert eventually(lambda: work.shown(WORK) == [(stopped, "canceled")], WITHIN)
    assert "running" in [status for _, status in work.shown(LOCKED_BODY)]
    assert is_held_while_the_body_runs(work, held)
    caller.join(WITHIN)
    assert counted(work) == 2  # the body ran to its end
    assert [status for _, status in work.shown(LOCKED_BODY)] == ["success"] * 2
    assert work.executions(of=CLEAN_UP) == []
    assert work.executions(of="lock_release") == []
    start_retry(work, stopped).join(WITHIN)
    assert counted(work) == 2
    assert held()
    (taken,) = work.executions("success", "lock_acquisition")
    return work.output_of(taken["id"], "Build Acquire Output")


@on_error
def test_a_lock_outlives_the_body_of_a_stopped_execution_until_its_ttl_ends(deploy, redis, stay, error_workflow):
    """n8n starts no error workflow for a stop, so `--lock-on-error` changes nothing."""
    work = deploy(*slow(5), error_workflow=error_workflow)
    grant = check_held_after_a_stop(work, held_on_redis(work, redis))
    assert 0 < redis.ttl(grant["key"]) <= 600
    (holder,) = stay.locks.force_release(work.scope, wire="n8n").holders
    assert holder.lock_id == grant["lock_id"]


@on_error
def test_on_http_a_lock_outlives_the_body_of_a_stopped_execution_until_its_ttl_ends(deploy_http, ask, error_workflow):
    work = deploy_http(*slow(5), error_workflow=error_workflow)
    held = held_on_http(work, ask)
    grant = check_held_after_a_stop(work, held)
    assert ask(work.scope, "release", lock_id=grant["lock_id"])[0] == 200  # a manual release
    assert not held()


def set_time_limit(work, seconds):
    """Set the timeout of the locked workflow itself, which the patch had extended by the wait."""
    data = work.client.workflow(work.id).data
    wanted = {name: data[name] for name in ("name", "nodes", "connections")}
    kept = {name: data["settings"][name] for name in ("executionOrder", "errorWorkflow")}
    work.client.update(work.id, {**wanted, "settings": {**kept, "executionTimeout": seconds}})


def is_held_after_the_timeout(work, held):
    """n8n passes the caller's timeout to a sub-workflow, which ends before its next node and not earlier."""
    set_time_limit(work, 6)
    late, caller = start_until_in_body(work)
    assert is_held_while_the_body_runs(work, held)
    assert eventually(lambda: work.shown(WORK) == [(late, "canceled")], WITHIN)
    caller.join(WITHIN)
    assert counted(work) == 1
    return True


def test_a_lock_is_held_while_the_body_of_a_timed_out_execution_runs(deploy, redis, stay):
    """In one process, n8n starts no error workflow for a timeout either."""
    work = deploy(*slow(9), error_workflow=CLEAN_UP)
    held = held_on_redis(work, redis)
    assert is_held_after_the_timeout(work, held)
    assert held()
    assert work.executions(of=CLEAN_UP) == []
    assert stay.locks.force_release(work.scope, wire="n8n").holders


def test_on_http_a_lock_is_held_while_the_body_of_a_timed_out_execution_runs(deploy_http, ask):
    work = deploy_http(*slow(9), error_workflow=CLEAN_UP)
    held = held_on_http(work, ask)
    assert is_held_after_the_timeout(work, held)
    assert held()
    assert work.executions(of=CLEAN_UP) == []


def test_a_body_that_is_stopped_itself_runs_no_further_node(deploy, redis, stay):
    work = deploy(*slow(5), error_workflow=CLEAN_UP)
    stopped, caller = start_until_in_body(work)
    stop(work, stopped)
    caller.join(WITHIN)
    _, (body, _) = work.shown(LOCKED_BODY)  # the call of the body, and the body
    stop(work, body)
    assert not free(redis, work.scope)
    assert stay.locks.force_release(work.scope, wire="n8n").holders
    assert work.hit()[0] == 200  # a new execution, longer than the rest of the first body
    assert counted(work) == 3
    assert free(redis, work.scope)


# ── queue mode: n8n's main process serves requests, a worker runs the workflows ──


def test_in_queue_mode_a_retry_acquires_the_lock_again_and_runs_the_body_under_it(deploy_queue, ask):
    test_on_http_a_retry_acquires_the_lock_again_and_runs_the_body_under_it(deploy_queue, ask)


def test_in_queue_mode_only_the_locked_workflow_itself_can_be_retried(deploy_queue, ask):
    test_on_http_only_the_locked_workflow_itself_can_be_retried(deploy_queue, ask)


def test_in_queue_mode_a_failed_inline_body_is_saved_and_retried_unlocked(deploy_queue, ask):
    """The reason why such a body needs acceptance: n8n saves the failed execution against its settings, and a retry
    starts at the failed node. A documented limit.
    """
    first = "={{ $execution.id === $('Lock Acquire').first().json.execution_id ? 'no object' : { done: true } }}"
    broken = node("Broken", "set", 3.4, {"mode": "raw", "jsonOutput": first, "options": {}})
    count, *_ = fails_once()
    body, options = inline_body(broken, count)
    work = deploy_queue(*body, **options)
    assert work.wiring == "inline"
    assert work.client.workflow(work.id).data["settings"]["saveDataErrorExecution"] == "none"
    assert work.hit()[0] == 200  # the answer came first
    assert eventually(lambda: work.executions("success", "error_handler_lock_cleanup"), WITHIN)
    ((failed, status),) = work.shown(WORK)
    assert (status, counted(work)) == ("error", 0)
    assert ask(work.scope, "acquire", lock_id="python", ttl_seconds=300)[0] == 200  # the error workflow released it
    start_retry(work, failed).join(WITHIN)
    assert counted(work) == 1  # the rest of the body ran while another holder had the lock
    assert len(work.executions(of="lock_acquisition")) == 1
    assert ask(work.scope, "release", lock_id="python")[0] == 200


def test_in_queue_mode_retrying_a_body_of_a_lost_worker_runs_no_node(deploy_queue, ask):
    """n8n marks executions missing from its queue as crashed, whatever the settings, and offers to retry them."""
    work = deploy_queue(*fails_once(seconds=20))
    caller = threading.Thread(target=work.hit)
    caller.start()
    assert eventually(lambda: counted(work) == 1, WITHIN)  # in the body
    work.server.crash(forgets=True)
    caller.join(WITHIN)
    body = f"{WORK} (locked body)"
    assert eventually(lambda: [status for _, status in work.shown(body)] == ["crashed"] * 2, WITHIN)
    for left, _ in work.shown(body):  # the call of the body, and the body
        start_retry(work, left).join(WITHIN)
    assert [status for _, status in work.shown(body)] == ["crashed"] * 2 + ["error"] * 2
    assert counted(work) == 1


def test_in_queue_mode_a_lock_outlives_the_body_of_a_stopped_execution_until_its_ttl_ends(deploy_queue, ask):
    test_on_http_a_lock_outlives_the_body_of_a_stopped_execution_until_its_ttl_ends(deploy_queue, ask, CLEAN_UP)


def test_in_queue_mode_on_redis_a_lock_outlives_the_body_of_a_stopped_execution_until_its_ttl_ends(
    deploy_redis_queue, redis, stay
):
    test_a_lock_outlives_the_body_of_a_stopped_execution_until_its_ttl_ends(deploy_redis_queue, redis, stay, CLEAN_UP)


def is_released_after_the_body(work, held):
    """In queue mode n8n checks the timeout only between nodes: the error workflow starts after the body has ended."""
    assert is_held_after_the_timeout(work, held)
    assert eventually(lambda: work.executions("success", CLEAN_UP), WITHIN)
    (cleaned,) = work.executions("success", CLEAN_UP)
    listed = work.output_of(cleaned["id"], "Error Trigger")["execution"]
    assert (listed["error"]["name"], listed["lastNodeExecuted"]) == ("TimeoutExecutionCancelledError", "Locked Body")
    assert work.output_of(cleaned["id"], "Log Cleanup")["scopes"] == [work.scope]
    return not held()


def test_in_queue_mode_the_error_workflow_releases_the_lock_of_a_timed_out_execution_after_its_body(deploy_queue, ask):
    work = deploy_queue(*slow(9), error_workflow=CLEAN_UP)
    assert is_released_after_the_body(work, held_on_http(work, ask))


def test_in_queue_mode_on_redis_the_error_workflow_releases_the_lock_of_a_timed_out_execution_after_its_body(
    deploy_redis_queue, redis
):
    work = deploy_redis_queue(*slow(9), error_workflow=CLEAN_UP)
    assert is_released_after_the_body(work, held_on_redis(work, redis))


def test_in_queue_mode_a_stopped_body_keeps_running_under_its_lock(deploy_queue, ask):
    """n8n reports it as canceled, but its main process cannot stop a sub-workflow that a worker runs."""
    work = deploy_queue(*slow(5), error_workflow=CLEAN_UP)
    held = held_on_http(work, ask)
    _, caller = start_until_in_body(work)
    _, (body, _) = work.shown(LOCKED_BODY)
    stop(work, body)
    assert work.shown(LOCKED_BODY)[1] == (body, "canceled")
    assert (counted(work), held()) == (1, True)
    caller.join(WITHIN)
    assert counted(work) == 2
    assert [status for _, status in work.shown(WORK)] == ["success"]
    assert not held()
