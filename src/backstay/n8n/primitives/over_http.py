"""The primitives on the Backstay server's routes: atomic, in order, handed over at once, with a fence.

A lock is waited for by long polls that all carry one request id: whichever of them is lost, the place in line is kept
and a grant is answered again. A grant lapses unless the workflow that wanted it confirms it: one that was stopped while
it waited never does.
"""

from __future__ import annotations

from backstay.n8n.primitives import inputs, shared
from backstay.n8n.primitives.builder import Drawing, expression, first, js, object_of
from backstay.n8n.primitives.shared import LOCK, NOW, RELEASE

#: One long poll, and how long n8n waits for its answer: longer than the server takes.
POLL_SECONDS, POLL_TIMEOUT = 50, 65
#: How long a grant waits for its confirmation: a caller that lives needs a moment, on a busy n8n a few seconds.
CONFIRM_SECONDS = 60
#: All other requests are answered at once.
TIMEOUT = 20
#: A server that is away is asked again after so long; so many times, where nobody waits for a lock.
AWAY_SECONDS, TRIES = 2, 5
#: All rate limits of n8n's workflows; a scope is one of them.
LIMIT_NAME = "n8n"

STATUS = "Number($json.statusCode ?? 0)"
BODY = "($json.body ?? { })"
#: No answer, too many requests, or a server whose engine is away: the same request may come again.
AWAY = f"({STATUS} === 0 || {STATUS} === 408 || {STATUS} === 429 || {STATUS} >= 500)"
DETAIL = f"String({BODY}.detail ?? {BODY}.title ?? ($json.error ?? {{ }}).message ?? $json.error ?? 'no answer')"


def _path(scope: str, verb: str) -> str:
    return f"/api/locks/{{{{ encodeURIComponent({scope}) }}}}/{verb}"


def _refused(d: Drawing, at: tuple[float, float]) -> None:
    """The server has said no, or nothing: what it said is the message."""
    said = f"{js('Backstay answered ')} + ($json.status || {js('nothing')}) + {js(': ')} + $json.detail"
    d.stop("Refused — Stop", at, said)


# ── lock_acquisition ──


def lock_acquisition(d: Drawing) -> None:
    """Long polls in one place of the line, until it is granted or the wait is over."""
    request = {"request_id": ("string", "$json.new_lock_id")}
    shared.wants_lock(d, request, inputs.IN_A_PATH)
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
    _read(d)
    _give_up(d)
    d.line("Generate Lock Id", "Build Lock Context", "Long Poll Acquire", "Check Wait State", "Acquired?")
    d.connect("Long Poll Acquire", "Check Wait State", output=1)
    d.fork("Acquired?", "Build Acquire Output", "Timeout?")
    d.fork("Timeout?", "Wait Timeout — Stop", "Should Wait?")
    d.fork("Should Wait?", "Wait Before Poll", "Held?")
    d.fork("Held?", "Fail Fast — Lock Held", "Refused — Stop")
    d.line("Wait Before Poll", "Long Poll Acquire")


def _read(d: Drawing) -> None:
    waits = f"{LOCK}.wait_till_lock_released"
    late = f"{waits} && {NOW} >= {LOCK}.deadline_ms"
    patient = f"({waits} || $runIndex < {TRIES - 1})"
    # A server has only one word for whoever gives it no time to wait: held.
    over = f"{STATUS} === 409 && ({BODY}.reason === 'timeout' || {waits} && {BODY}.reason === 'held')"
    state = (
        f"{STATUS} === 200 ? 'acquired' : {over} ? 'timeout'"
        f" : {STATUS} === 409 && {BODY}.reason === 'held' ? 'held' : {STATUS} === 202 ? 'keep-waiting'"
        f" : !{AWAY} ? 'refused' : {late} ? 'timeout' : {patient} ? 'away' : 'refused'"
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
    d.choice("Acquired?", (7, 0), "$json.state === 'acquired'")
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
    shared.gives_lock(d, (8, -1), {field: f"$json.grant.{field}" for field in texts})


def _give_up(d: Drawing) -> None:
    counted = f"{js(' (count ')} + $json.count + {js('): ')} + $json.detail"
    d.choice("Timeout?", (8, 1), "$json.state === 'timeout'")
    shared.is_late(d, (9, 0), counted)
    d.choice("Should Wait?", (9, 1), "['keep-waiting', 'away'].includes($json.state)")
    # The wait for the lock is the server's; only a server that is away is given a pause.
    d.wait("Wait Before Poll", (10, 1), expression(f"$json.state === 'away' ? {AWAY_SECONDS} : 0"))
    d.choice("Held?", (10, 2), "$json.state === 'held'")
    shared.is_held(d, (11, 2), counted)
    _refused(d, (11, 3))


# ── requests that are answered at once ──


def _ask(
    d: Drawing, name: str, at: tuple[float, float], path: str, body: str, then: str, *, tries: int = TRIES
) -> None:
    """A request that is tried again while the server is away; `then` gets `status`, `detail` and `answer`."""
    column, row = at
    read, again, pause = f"Read {name}", "Try Again?", "Wait Before Retry"
    d.http(name, at, path, body, timeout_seconds=TIMEOUT)
    fields = {"status": ("number", STATUS), "detail": ("string", DETAIL), "answer": ("object", BODY)}
    if tries > 1:
        fields["again"] = ("boolean", f"{AWAY} && $runIndex < {tries - 1}")
    d.fields(read, (column + 1, row), fields)
    d.line(name, read)
    d.connect(name, read, output=1)
    if tries == 1:
        d.line(read, then)
        return
    d.choice(again, (column + 2, row), "$json.again")
    d.wait(pause, (column + 2, row + 1), AWAY_SECONDS)
    d.line(read, again)
    d.fork(again, pause, then)
    d.line(pause, name)


def lock_release(d: Drawing) -> None:
    """Only by whoever took it. What is gone already is a success."""
    shared.wants_release(d, {}, inputs.IN_A_PATH)
    body = object_of({"lock_id": f"{RELEASE}.provided_lock_id"})
    _ask(d, "Release Lock", (4, 0), _path(f"{RELEASE}.scope", "release"), body, "Match?")
    d.choice("Match?", (7, 0), "$json.status === 200")
    shared.is_released(d, (8, 0), "$json.answer.idempotent")
    d.choice("Held?", (8, 1), "$json.status === 409")
    said = f"{js('LOGIC ERROR: ')} + $json.detail + {js(' Nothing was released.')}"
    d.stop("Ownership Mismatch — Stop", (9, 1), said)
    _refused(d, (9, 2))
    d.line("Build Release Context", "Release Lock")
    d.fork("Match?", "Build Result", "Held?")
    d.fork("Held?", "Ownership Mismatch — Stop", "Refused — Stop")


# ── error_handler_lock_cleanup ──


def lock_cleanup(d: Drawing) -> None:
    """All that the failed execution holds: the server knows it, and needs no list of scopes."""
    d.on_error("Error Trigger", (0, 0))
    d.fields("Prepare Clean-up", (1, 0), {"failed_execution_id": ("string", shared.FAILED_EXECUTION)})
    d.choice("Has Execution?", (2, 0), "$json.failed_execution_id !== ''")
    body = object_of({"execution_id": f"{first('Prepare Clean-up')}.failed_execution_id"})
    _ask(d, "Clean Up Locks", (3, 0), "/api/locks/cleanup", body, "Cleaned Up?")
    d.choice("Cleaned Up?", (6, 0), "$json.status === 200")
    shared.is_cleaned(
        d,
        (7, 0),
        cleaned="$json.answer.cleaned",
        count="$json.answer.cleaned_count",
        scopes="$json.answer.scopes",
        reason="$json.answer.reason",
    )
    _refused(d, (7, 1))
    shared.is_clean(d, js(shared.NO_EXECUTION))
    d.line("Error Trigger", "Prepare Clean-up", "Has Execution?")
    d.fork("Has Execution?", "Clean Up Locks", "Log Nothing To Clean")
    d.fork("Cleaned Up?", "Log Cleanup", "Refused — Stop")


# ── rate_limit_check ──


def rate_limit_check(d: Drawing) -> None:
    """Each item is counted, once: a request whose answer was lost is not sent again."""
    shared.wants_count(d, "Build Hit", {})
    body = object_of({field: f"$json.{field}" for field in ("scope", "limit", "windowSeconds")})
    _ask(d, "Hit Limit", (4, 0), f"/api/limits/{LIMIT_NAME}/hit", body, "Answered?", tries=1)
    d.choice("Answered?", (6, 0), "$json.status === 200")
    shared.is_counted(d, (7, 0), allowed="$json.answer.allowed", count="$json.answer.count", read="$json.answer")
    _refused(d, (7, 1))
    d.line("Build Hit", "Hit Limit")
    d.fork("Answered?", "Build Result", "Refused — Stop")
