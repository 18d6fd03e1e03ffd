"""Every error that Backstay raises. One tree; attributes carry the facts, messages carry the way out.

BackstayError
├── ConfigError            what you passed, or two callers who disagree; also a ValueError
├── WrongLoop              an async Backstay used from a second event loop
├── Closed                 used after close()
├── EngineError            the engine, not you
│   ├── EngineUnavailable  not reachable, nothing happened
│   │   └── NotReplicated  too few replicas confirmed a grant, so it was given back
│   ├── OutcomeUnknown     the reply was lost, it may have happened
│   ├── EngineRefused      the server said no: rights, memory, read-only
│   ├── CorruptRecord      a stored record that cannot be read
│   └── SchemaTooNew       written by a newer Backstay
├── LockError
│   ├── LockHeld           not free and you asked not to wait
│   ├── LockTimeout        not free within `wait`; also a TimeoutError
│   ├── QueueFull          `max_waiters` are waiting already
│   ├── NotOwner           releasing what is not yours (any more)
│   ├── LeaseLost          the lease ended before you were done
│   ├── StaleFence         a guarded write came after a newer holder's; nothing was written
│   ├── RowMissing         a guarded update found no row; nothing was written; also a LookupError
│   └── WouldDeadlock      waiting for what you hold yourself
├── IdempotencyError
│   ├── InProgress         a call with this key runs and you asked not to wait (so long); also a TimeoutError
│   ├── FingerprintMismatch  this key was used for another call
│   └── ReplayedFailure    the call ran before and failed, and `on_error="replay"` kept that
├── JobError
│   ├── JobFailed          it used up its attempts and lies in the dead letter
│   ├── JobCancelled       somebody ended it, or it ended itself
│   ├── JobSkipped         what it waited for did not complete
│   ├── JobNotFound        no such job (any more); also a LookupError
│   ├── RetryRefused       what a job of a run needs did not succeed: that is to be tried again first
│   ├── ResultTimeout      not done within `timeout`; also a TimeoutError
│   ├── JobTimeout         ran longer than its `timeout`; also a TimeoutError
│   ├── CommandFailed      a command ended with an exit code or a signal, or what it put out cannot be read
│   ├── UnknownJob         a job type that this process does not define; also a LookupError
│   ├── BadArgument        an argument that cannot be carried to a worker; also a ValueError
│   ├── BadResult          a result that cannot be kept; also a ValueError
│   └── PayloadTooLarge    arguments or a result above their limit; also a ValueError
├── WorkflowError
│   ├── BadDefinition      a workflow that cannot be; every problem is listed with its line; also a ValueError
│   ├── BadExpression      an `if` or a `${{ … }}` that cannot be read; also a ValueError
│   ├── BadInput           inputs that a workflow does not take; also a ValueError
│   ├── WorkflowNotFound   no workflow of this name, or no such version; also a LookupError
│   └── RunNotFound        no such run (any more); also a LookupError
├── N8nError
│   ├── BadWorkflow        a file that is no n8n workflow; also a ValueError
│   ├── WorkspaceError     something in a workspace is missing, wrong or in the way; nothing was changed
│   ├── PatchRefused       a workflow that cannot be given the lock or limit as asked; nothing was changed
│   ├── N8nUnreachable     no n8n answers there
│   └── N8nRefused         n8n answered, and the answer is no
└── RateLimited            too much of something in too short a time
"""

from __future__ import annotations

from dataclasses import dataclass


class BackstayError(Exception):
    """Anything that Backstay raises."""


class ConfigError(BackstayError, ValueError):
    """A value that cannot work. The message names it and shows one that can."""


class WrongLoop(BackstayError):
    """An async Backstay belongs to the event loop that used it first; make one per loop."""


class Closed(BackstayError):
    """This Backstay was closed; make a new one."""


class EngineError(BackstayError):
    """The engine failed, not the caller."""


class EngineUnavailable(EngineError):
    """The engine cannot be reached. Nothing happened there, so trying again is safe."""


class NotReplicated(EngineUnavailable):
    """Fewer replicas than `durability` asks for confirmed a grant in time. It was given back; nothing is held."""

    def __init__(self, *, name: str, wanted: int, confirmed: int, within: float) -> None:
        super().__init__(
            f"{confirmed} of {wanted} replicas confirmed the grant of {name!r} within {within:g} s, so it was given"
            " back. Look at the replicas (backstay doctor), or ask for fewer."
        )
        self.name = name
        self.wanted = wanted
        self.confirmed = confirmed
        self.within = within


class OutcomeUnknown(EngineError):
    """The request left, its reply never came: it may or may not have happened."""


class EngineRefused(EngineError):
    """The engine answered, and the answer is no: rights, memory, a read-only replica."""

    #: It was about what was sent, which no server could keep: sending it again is in vain.
    pointless: bool = False


class CorruptRecord(EngineError):
    """A stored record cannot be read: damaged, or written by another version."""


class SchemaTooNew(EngineError):
    """The database was written by a newer Backstay. Upgrade this process first."""


@dataclass(frozen=True, slots=True)
class HolderInfo:
    """Who holds a lock: what an error or `inspect` can tell about them."""

    lock_id: str
    fence: int
    execution_id: str
    workflow_id: str
    workflow_name: str
    locked_at: str
    expires_at: str
    exclusive: bool = True

    def __str__(self) -> str:
        return (
            f"{self.workflow_name or self.workflow_id or 'unknown'}"
            f" (execution {self.execution_id or '?'}, lock_id {self.lock_id}, locked_at {self.locked_at})"
        )


class LockError(BackstayError):
    """About one lock, semaphore or read-write lock: `.name` says which."""

    name: str

    def __init__(self, message: str, *, name: str) -> None:
        super().__init__(message)
        self.name = name


class LockHeld(LockError):
    """Somebody else holds it and you asked not to wait. `.holder` says who."""

    def __init__(self, *, name: str, holder: HolderInfo | None, count: int) -> None:
        who = f"held by {holder}" if holder else "promised to a waiter"
        super().__init__(f"{name!r} is {who}; {count} hold it or wait. Pass wait=seconds to queue.", name=name)
        self.holder = holder
        self.count = count


class LockTimeout(LockError, TimeoutError):
    """Not granted within `wait` seconds; the place in the queue is given up."""

    def __init__(self, *, name: str, waited: float, holder: HolderInfo | None) -> None:
        who = f"held by {holder}" if holder else "promised to another waiter"
        super().__init__(f"{name!r} was not free within {waited:g} s: {who}.", name=name)
        self.waited = waited
        self.holder = holder


class QueueFull(LockError):
    """As many callers wait as `max_waiters` allows; come back later."""

    def __init__(self, *, name: str, waiters: int) -> None:
        super().__init__(f"{waiters} callers already wait for {name!r} (max_waiters={waiters}).", name=name)
        self.waiters = waiters


class NotOwner(LockError):
    """A release of what belongs to somebody else by now. Nothing was released."""

    def __init__(self, *, name: str, lock_id: str, holder: HolderInfo | None) -> None:
        super().__init__(
            f"LOGIC ERROR: lock_id {lock_id} does not hold {name!r}; it is held by {holder}. "
            "The lease ended before this release, or the wrong lock_id was passed.",
            name=name,
        )
        self.lock_id = lock_id
        self.holder = holder


class LeaseLost(LockError):
    """The lease ended before its work did. Whatever followed was not protected; guard writes with the fence."""

    def __init__(self, *, name: str, lock_id: str, fence: int, reason: str) -> None:
        super().__init__(f"lease {lock_id} on {name!r} (fence {fence}) was lost: {reason}.", name=name)
        self.lock_id = lock_id
        self.fence = fence
        self.reason = reason


class StaleFence(LockError):
    """A guarded write met a newer fence: somebody held the lock after us. Nothing was written."""

    def __init__(self, *, name: str, fence: int, newer: int) -> None:
        super().__init__(
            f"the write under {name!r} bears fence {fence}, and fence {newer} has written already: the lease ended"
            " and somebody else went on. Nothing was written.",
            name=name,
        )
        self.fence = fence
        self.newer = newer


class RowMissing(LockError, LookupError):
    """A guarded update found no row that it could have changed. Nothing was written."""

    def __init__(self, *, name: str, table: str, row: dict[str, object]) -> None:
        super().__init__(
            f"{table} has no row {row!r}, so nothing was written under {name!r}; upsert() would insert it.", name=name
        )
        self.table = table
        self.row = row


class WouldDeadlock(LockError):
    """This task or thread waits for a lock that only itself can release."""

    def __init__(self, *, name: str, lock_id: str, way_out: str = "Pass reentrant=True to count instead.") -> None:
        super().__init__(
            f"this task already holds {name!r} (lock_id {lock_id}) and would wait for itself for ever. {way_out}",
            name=name,
        )
        self.lock_id = lock_id


@dataclass(slots=True)  # not frozen: that would make a denial twice as dear
class Decision:
    """What a limit said. True in a condition when it admits. Figures are those of the rate that decides."""

    allowed: bool
    #: The key that was asked for.
    scope: str
    #: How much is taken, this hit included, and how much may be.
    count: int
    limit: int
    remaining: int
    #: Seconds until nothing is taken any more, if nobody comes.
    reset_after: float
    #: Seconds until the same hit is admitted, if nobody else comes; 0 when it was.
    retry_after: float
    #: Seconds in which `limit` may be taken.
    window: float
    #: When it was decided, or for when it was reserved: seconds since the epoch, by the engine's clock.
    at: float
    #: Who decided: "engine"; "memory", which knows the engine's last denial; or, the engine being away, the policy:
    #: "deny", "allow" or "local".
    by: str = "engine"
    #: Why the engine did not decide.
    trouble: str = ""

    def __bool__(self) -> bool:
        return self.allowed


class RateLimited(BackstayError):
    """Over the limit; `.decision` says when to come back."""

    def __init__(self, decision: Decision, *, name: str) -> None:
        why = (
            f"cannot be judged: {decision.trouble}"
            if decision.trouble
            else f"has taken {decision.count} of {decision.limit} in {decision.window:g} s"
        )
        super().__init__(f"{decision.scope!r} of {name!r} {why}; try again in {decision.retry_after:.3f} s.")
        self.name = name
        self.decision = decision


class IdempotencyError(BackstayError):
    """About one idempotency key: `.name` says which."""

    name: str

    def __init__(self, message: str, *, name: str) -> None:
        super().__init__(message)
        self.name = name


class InProgress(IdempotencyError, TimeoutError):
    """A call with this key runs elsewhere and you asked not to wait, or not so long. Nothing was run."""

    def __init__(self, *, name: str, by: str, since: str, waited: float, retry_after: float) -> None:
        super().__init__(
            f"{name!r} runs since {since} ({by})" + (f" and did not end within {waited:g} s" if waited else "") + "."
            " Try again later, or pass wait=None to wait for its outcome.",
            name=name,
        )
        self.by = by
        self.since = since
        self.waited = waited
        #: Seconds after which its lease ends unless it still works.
        self.retry_after = retry_after


class FingerprintMismatch(IdempotencyError):
    """This key was used for a call with another fingerprint. Nothing was run."""

    def __init__(self, *, name: str, since: str) -> None:
        super().__init__(
            f"{name!r} was used at {since} for a call with another fingerprint: a key names one call, with its"
            " arguments. Use a new key for a new call.",
            name=name,
        )
        self.since = since


class ReplayedFailure(IdempotencyError):
    """The call ran before and failed; it is not run again. `.kind` and `.reason` are what it raised."""

    def __init__(self, *, name: str, kind: str, reason: str) -> None:
        super().__init__(f"{name!r} ran before and failed: {kind}: {reason}", name=name)
        self.kind = kind
        self.reason = reason


class JobError(BackstayError):
    """About one job: `.job_id` says which; "" where it has none yet."""

    job_id: str

    def __init__(self, message: str, *, job_id: str = "") -> None:
        super().__init__(message)
        self.job_id = job_id


class JobFailed(JobError):
    """Its attempts are used up. `.kind` and `.reason` are what the last one raised, `.trace` where."""

    def __init__(self, *, job_id: str, type: str, kind: str, reason: str, trace: str = "", attempt: int = 0) -> None:  # noqa: A002 - what it is called everywhere
        super().__init__(f"{type} {job_id} failed for good at attempt {attempt}: {kind}: {reason}", job_id=job_id)
        self.type = type
        self.kind = kind
        self.reason = reason
        self.trace = trace
        self.attempt = attempt


class JobCancelled(JobError):
    """Somebody ended it, or it ended itself. It has no result."""

    def __init__(self, *, job_id: str, type: str, reason: str = "") -> None:  # noqa: A002 - the same
        super().__init__(f"{type} {job_id} was cancelled" + (f": {reason}" if reason else ""), job_id=job_id)
        self.type = type
        self.reason = reason


class JobSkipped(JobError):
    """What it waited for did not complete, so it never ran. `options(when="all_done")` runs it all the same."""

    def __init__(self, *, job_id: str, type: str, reason: str = "") -> None:  # noqa: A002 - the same
        super().__init__(
            f"{type} {job_id} was skipped" + (f": {reason}" if reason else ": what it waited for did not complete"),
            job_id=job_id,
        )
        self.type = type
        self.reason = reason


class JobNotFound(JobError, LookupError):
    """There is no such job: never was, was rolled back, or its record is past its time (`keep=`)."""

    def __init__(self, *, job_id: str, run_id: str = "", known: tuple[str, ...] = ()) -> None:
        """`run_id`: by its name in that run, which has those that are `known`."""
        some = ", ".join(known[:10]) + (", …" if len(known) > 10 else "")  # noqa: PLR2004 - a line's worth
        super().__init__(
            f"run {run_id} has no job {job_id!r}; it has {some or 'none'}"
            if run_id
            else f"there is no job {job_id!r}; its record may be past its time (keep=)",
            job_id=job_id,
        )
        self.run_id = run_id


class RetryRefused(JobError):
    """A job of a run that would be skipped again at once. `.needs` are what did not succeed, by name, and how each
    ended: try those again, and what was skipped because of them follows.
    """

    def __init__(self, *, job_id: str, name: str, state: str, needs: dict[str, str], reason: str = "") -> None:
        if needs and not reason:
            some = [f"{need} {'failed' if how == 'failed' else f'was {how}'}" for need, how in list(needs.items())[:3]]
            more = f", and {len(needs) - 3} more" if len(needs) > 3 else ""  # noqa: PLR2004 - as many as were named
            them = next(iter(needs)) if len(needs) == 1 else "those"
            reason = (
                f"what it needs did not succeed ({', '.join(some)}{more}): retry {them}, or re-run all that failed,"
                f" and it follows by itself"
            )
        super().__init__(f"{name} was {state} and stays so: {reason}", job_id=job_id)
        self.name = name
        self.state = state
        self.needs = needs


class ResultTimeout(JobError, TimeoutError):
    """Not done within `timeout`. The job goes on; ask again."""

    def __init__(self, *, job_id: str, waited: float, state: str) -> None:
        super().__init__(f"{job_id} was not done within {waited:g} s; it is {state}", job_id=job_id)
        self.waited = waited
        self.state = state


class JobTimeout(JobError, TimeoutError):
    """An attempt ran longer than its `timeout`."""

    def __init__(self, *, job_id: str, type: str, timeout: float) -> None:  # noqa: A002 - the same
        super().__init__(f"{type} {job_id} ran longer than its timeout of {timeout:g} s", job_id=job_id)
        self.type = type
        self.timeout = timeout


class CommandFailed(JobError):
    """A command job went wrong: `.step` and `.exit_code` or `.signal` say where and how, `.output` is the end of what
    it wrote. `exit_code` is None where no process ended by itself.
    """

    def __init__(
        self,
        message: str,
        *,
        step: str = "",
        exit_code: int | None = None,
        signal: str = "",
        output: str = "",
        job_id: str = "",
    ) -> None:
        super().__init__(f"{step}: {message}" if step else message, job_id=job_id)
        self.step = step
        self.exit_code = exit_code
        self.signal = signal
        self.output = output


class UnknownJob(JobError, LookupError):
    """A job type that this process does not define."""

    def __init__(self, *, type: str, known: tuple[str, ...] = (), job_id: str = "") -> None:  # noqa: A002 - the same
        super().__init__(
            f"no job type {type!r} is defined here; known: {', '.join(known) or 'none'}. Import the module that"
            " defines it before the worker starts.",
            job_id=job_id,
        )
        self.type = type
        self.known = known


class BadArgument(JobError, ValueError):
    """An argument that cannot be carried to a worker. Nothing was enqueued."""

    def __init__(self, *, type: str, argument: str, reason: str, job_id: str = "") -> None:  # noqa: A002 - the same
        super().__init__(
            f"argument {argument!r} of {type} cannot be carried to a worker: {reason}. Pass plain data, a dataclass,"
            " a msgspec Struct or a pydantic model that its annotation names.",
            job_id=job_id,
        )
        self.type = type
        self.argument = argument
        self.reason = reason


class BadResult(JobError, ValueError):
    """What a job returned cannot be kept, or not be rebuilt as its return annotation says."""

    def __init__(self, *, type: str, reason: str, job_id: str = "") -> None:  # noqa: A002 - the same
        super().__init__(
            f"what {type} returned cannot be kept: {reason}. Return plain data, and what the annotation says.",
            job_id=job_id,
        )
        self.type = type
        self.reason = reason


class PayloadTooLarge(JobError, ValueError):
    """Arguments or a result above their limit. Store them elsewhere and pass where they lie."""

    def __init__(self, *, type: str, what: str, size: int, limit: int, job_id: str = "") -> None:  # noqa: A002 - the same
        super().__init__(
            f"{type}: {size} bytes of {what}, and at most {limit} are carried; store it elsewhere and pass where it"
            f" lies, or raise {'payload_limit' if what == 'arguments' else 'result_limit'}=",
            job_id=job_id,
        )
        self.type = type
        self.what = what
        self.size = size
        self.limit = limit


class WorkflowError(BackstayError):
    """About a workflow or one of its runs."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong in a definition, and where. Lines and columns count from 1; 0: nowhere in particular."""

    message: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.line}:{self.column}: {self.message}" if self.line else self.message

    def within(self, source: str) -> str:
        """The same with its file, as editors find it."""
        return f"{source}{':' if self.line else ': '}{self}" if source else str(self)


class BadDefinition(WorkflowError, ValueError):
    """A workflow that cannot be. `.problems` are all that were found; nothing was stored."""

    def __init__(self, problems: tuple[Problem, ...], *, source: str = "") -> None:
        lines = "".join(f"\n  {one.within(source)}" for one in problems)
        many = f"{len(problems)} problems" if len(problems) != 1 else "a problem"
        super().__init__(f"the workflow has {many}; nothing was stored:{lines}")
        self.problems = problems
        self.source = source


class BadExpression(WorkflowError, ValueError):
    """An `if` or a `${{ … }}` that cannot be read. `.position` counts characters from 0."""

    def __init__(self, message: str, *, text: str, position: int) -> None:
        super().__init__(f"{message}, at character {position + 1} of {text!r}")
        self.message = message
        self.text = text
        self.position = position


class BadInput(WorkflowError, ValueError):
    """Inputs that a workflow does not take, or lacks. No run was started."""

    def __init__(self, *, workflow: str, reason: str) -> None:
        super().__init__(f"workflow {workflow!r} cannot be started so: {reason}")
        self.workflow = workflow
        self.reason = reason


class WorkflowNotFound(WorkflowError, LookupError):
    """There is no workflow of this name, or no such version of it."""

    def __init__(self, *, workflow: str, version: int = 0) -> None:
        which = f"version {version} of workflow" if version else "workflow"
        super().__init__(f"there is no {which} {workflow!r}; `backstay workflows ls` shows what there is")
        self.workflow = workflow
        self.version = version


class RunNotFound(WorkflowError, LookupError):
    """There is no such run: never was, or its record is past its time (`keep=`)."""

    def __init__(self, *, run_id: str) -> None:
        super().__init__(f"there is no run {run_id!r}; its record may be past its time")
        self.run_id = run_id


class N8nError(BackstayError):
    """Something about n8n: a workflow file, a workspace, a server."""


class BadWorkflow(N8nError, ValueError):
    """A file that is no n8n workflow. The message says where and why."""

    def __init__(self, why: str, *, source: str = "", line: int = 0, column: int = 0) -> None:
        place = source or "this workflow"
        if line:
            place += f", line {line}, column {column}"
        super().__init__(f"{place}: {why}")
        self.why = why
        self.source = source
        self.line = line
        self.column = column


class WorkspaceError(N8nError):
    """Something in a workspace is missing, wrong or in the way. Nothing was changed."""


class PatchRefused(N8nError):
    """A workflow that cannot be given the lock or limit as asked. Nothing was changed."""


class N8nUnreachable(N8nError):
    """No n8n answers there, or not in time."""


class N8nRefused(N8nError):
    """n8n answered, and the answer is no."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
