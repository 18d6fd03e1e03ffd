"""The primitives over the Backstay server's HTTP API: atomic, FIFO, with immediate handoff and fencing.

A caller waits for a lock with long polls that share one request id: when a poll or its response is lost, the caller
keeps its place in the queue and receives its grant again. A grant lapses unless the workflow that requested it confirms
it, so an execution that was stopped while it waited never blocks the lock.
"""

from __future__ import annotations

from backstay.n8n.primitives import inputs, shared
from backstay.n8n.primitives.builder import WorkflowBuilder, expression, first, js, object_of
from backstay.n8n.primitives.shared import LOCK, NOW, RELEASE

#: The duration of a long poll, and n8n's request timeout, which must be longer.
POLL_SECONDS, POLL_TIMEOUT = 50, 65
#: How long a grant waits for its confirmation; a busy n8n may need a few seconds.
CONFIRM_SECONDS = 60
#: The timeout of all other requests, which the server answers at once.
TIMEOUT = 20
#: The pause before a retry while the server is unavailable, and the number of attempts for requests that do not wait
#: for a lock.
RETRY_SECONDS, TRIES = 2, 5
#: The limit that all n8n workflows share; the scope is its key.
LIMIT_NAME = "n8n"

STATUS = "Number($json.statusCode ?? 0)"
BODY = "($json.body ?? { })"
#: No response, too many requests, or an unavailable engine: the request may be sent again.
UNAVAILABLE = f"({STATUS} === 0 || {STATUS} === 408 || {STATUS} === 429 || {STATUS} >= 500)"
DETAIL = f"String({BODY}.detail ?? {BODY}.title ?? ($json.error ?? {{ }}).message ?? $json.error ?? 'no answer')"


def _path(scope: str, verb: str) -> str:
    return f"/api/locks/{{{{ encodeURIComponent({scope}) }}}}/{verb}"


def _add_refusal(d: WorkflowBuilder, at: tuple[float, float]) -> None:
    """Add the error for a request that the server refused or did not answer; its message contains the response."""
    message = f"{js('Backstay answered ')} + ($json.status || {js('nothing')}) + {js(': ')} + $json.detail"
    d.stop_and_error("Refused — Stop", at, message)


# ── lock_acquisition ──


def lock_acquisition(d: WorkflowBuilder) -> None:
    """Acquire with long polls that keep one place in the queue, until the lock is granted or the wait times out."""
    request = {"request_id": ("string", "$json.new_lock_id")}
    shared.add_acquire_inputs(d, request, inputs.IN_A_PATH)
    same = (
        "request_id",
        "lock_id",
        "workflow_id",
        "workflow_name",
        "execution_id",
        "wait_till_lock_released",
        "max_wait_seconds",
    )
    asked = {field: f"{LOCK}.{field}" for field in same}
    asked |= {
        "ttl_seconds": f"{LOCK}.ttl",
        "poll_seconds": str(POLL_SECONDS),
        "confirm_seconds": str(CONFIRM_SECONDS),
    }
    d.http(
        "Long Poll Acquire",
        (5, 0),
        _path(f"{LOCK}.scope", "acquire"),
        object_of(asked),
        timeout_seconds=POLL_TIMEOUT,
    )
    _add_poll_result(d)
    _add_failures(d)
    d.chain("Generate Lock Id", "Build Lock Context", "Long Poll Acquire", "Check Wait State", "Acquired?")
    d.connect("Long Poll Acquire", "Check Wait State", output=1)
    d.fork("Acquired?", "Build Acquire Output", "Timeout?")
    d.fork("Timeout?", "Wait Timeout — Stop", "Should Wait?")
    d.fork("Should Wait?", "Wait Before Poll", "Held?")
    d.fork("Held?", "Fail Fast — Lock Held", "Refused — Stop")
    d.chain("Wait Before Poll", "Long Poll Acquire")


def _add_poll_result(d: WorkflowBuilder) -> None:
    waits = f"{LOCK}.wait_till_lock_released"
    late = f"{waits} && {NOW} >= {LOCK}.deadline_ms"
    patient = f"({waits} || $runIndex < {TRIES - 1})"
    # To a caller without time left to wait, the server always replies `held`.
    over = f"{STATUS} === 409 && ({BODY}.reason === 'timeout' || {waits} && {BODY}.reason === 'held')"
    state = (
        f"{STATUS} === 200 ? 'acquired' : {over} ? 'timeout'"
        f" : {STATUS} === 409 && {BODY}.reason === 'held' ? 'held' : {STATUS} === 202 ? 'keep-waiting'"
        f" : !{UNAVAILABLE} ? 'refused' : {late} ? 'timeout' : {patient} ? 'away' : 'refused'"
    )
    d.fields(
        "Check Wait State",
        (6, 0),
        {
            "state": ("string", state),
            "status": ("number", STATUS),
            "count": ("number", f"Number({BODY}.count ?? 0)"),
            "detail": ("string", DETAIL),
            "grant": ("object", BODY),
        },
    )
    d.condition("Acquired?", (7, 0), "$json.state === 'acquired'")
    texts = (
        "scope",
        "lock_id",
        "key",
        "meta_key",
        "workflow_id",
        "workflow_name",
        "execution_id",
        "locked_at",
        "fence",
        "expires_at",
    )
    shared.add_acquire_output(d, (8, -1), {field: f"$json.grant.{field}" for field in texts})


def _add_failures(d: WorkflowBuilder) -> None:
    counted = f"{js(' (count ')} + $json.count + {js('): ')} + $json.detail"
    d.condition("Timeout?", (8, 1), "$json.state === 'timeout'")
    shared.add_timeout_error(d, (9, 0), counted)
    d.condition("Should Wait?", (9, 1), "['keep-waiting', 'away'].includes($json.state)")
    # The server does the waiting; the client pauses only while the server is unavailable.
    d.wait("Wait Before Poll", (10, 1), expression(f"$json.state === 'away' ? {RETRY_SECONDS} : 0"))
    d.condition("Held?", (10, 2), "$json.state === 'held'")
    shared.add_held_error(d, (11, 2), counted)
    _add_refusal(d, (11, 3))


# ── requests without waiting ──


def _add_request(
    d: WorkflowBuilder, name: str, at: tuple[float, float], path: str, body: str, then: str, *, tries: int = TRIES
) -> None:
    """Add a request that is retried while the server is unavailable; `then` receives `status`, `detail` and
    `answer`.
    """
    column, row = at
    read, again, pause = f"Read {name}", "Try Again?", "Wait Before Retry"
    d.http(name, at, path, body, timeout_seconds=TIMEOUT)
    fields = {"status": ("number", STATUS), "detail": ("string", DETAIL), "answer": ("object", BODY)}
    if tries > 1:
        fields["again"] = ("boolean", f"{UNAVAILABLE} && $runIndex < {tries - 1}")
    d.fields(read, (column + 1, row), fields)
    d.chain(name, read)
    d.connect(name, read, output=1)
    if tries == 1:
        d.chain(read, then)
        return
    d.condition(again, (column + 2, row), "$json.again")
    d.wait(pause, (column + 2, row + 1), RETRY_SECONDS)
    d.chain(read, again)
    d.fork(again, pause, then)
    d.chain(pause, name)


def lock_release(d: WorkflowBuilder) -> None:
    """Release as the owner. A lock that is already gone counts as success."""
    shared.add_release_inputs(d, {}, inputs.IN_A_PATH)
    body = object_of({"lock_id": f"{RELEASE}.provided_lock_id"})
    _add_request(d, "Release Lock", (4, 0), _path(f"{RELEASE}.scope", "release"), body, "Match?")
    d.condition("Match?", (7, 0), "$json.status === 200")
    shared.add_release_output(d, (8, 0), "$json.answer.idempotent")
    d.condition("Held?", (8, 1), "$json.status === 409")
    message = f"{js('LOGIC ERROR: ')} + $json.detail + {js(' Nothing was released.')}"
    d.stop_and_error("Ownership Mismatch — Stop", (9, 1), message)
    _add_refusal(d, (9, 2))
    d.chain("Build Release Context", "Release Lock")
    d.fork("Match?", "Build Result", "Held?")
    d.fork("Held?", "Ownership Mismatch — Stop", "Refused — Stop")


# ── error_handler_lock_cleanup ──


def lock_cleanup(d: WorkflowBuilder) -> None:
    """Release all locks that the failed execution holds; the server knows them, so no list of scopes is needed."""
    d.error_trigger("Error Trigger", (0, 0))
    d.fields("Prepare Clean-up", (1, 0), {"failed_execution_id": ("string", shared.FAILED_EXECUTION)})
    d.condition("Has Execution?", (2, 0), "$json.failed_execution_id !== ''")
    body = object_of({"execution_id": f"{first('Prepare Clean-up')}.failed_execution_id"})
    _add_request(d, "Clean Up Locks", (3, 0), "/api/locks/cleanup", body, "Cleaned Up?")
    d.condition("Cleaned Up?", (6, 0), "$json.status === 200")
    shared.add_cleanup_output(
        d,
        (7, 0),
        cleaned="$json.answer.cleaned",
        count="$json.answer.cleaned_count",
        scopes="$json.answer.scopes",
        reason="$json.answer.reason",
    )
    _add_refusal(d, (7, 1))
    shared.add_nothing_to_clean_output(d, js(shared.NO_EXECUTION))
    d.chain("Error Trigger", "Prepare Clean-up", "Has Execution?")
    d.fork("Has Execution?", "Clean Up Locks", "Log Nothing To Clean")
    d.fork("Cleaned Up?", "Log Cleanup", "Refused — Stop")


# ── rate_limit_check ──


def rate_limit_check(d: WorkflowBuilder) -> None:
    """Count each item once: a request whose response was lost is not sent again, because it may have counted."""
    shared.add_limit_inputs(d, "Build Hit", {})
    body = object_of({field: f"$json.{field}" for field in ("scope", "limit", "windowSeconds")})
    _add_request(d, "Hit Limit", (4, 0), f"/api/limits/{LIMIT_NAME}/hit", body, "Answered?", tries=1)
    d.condition("Answered?", (6, 0), "$json.status === 200")
    shared.add_limit_output(d, (7, 0), allowed="$json.answer.allowed", count="$json.answer.count", read="$json.answer")
    _add_refusal(d, (7, 1))
    d.chain("Build Hit", "Hit Limit")
    d.fork("Answered?", "Build Result", "Refused — Stop")
