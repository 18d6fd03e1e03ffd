"""Errors of jobs: definition, enqueueing, execution and results."""

from __future__ import annotations

from backstay.errors.engine import BackstayError


class JobError(BackstayError):
    """An error of one job, named by `.job_id`; "" before the job has an id."""

    job_id: str

    def __init__(self, message: str, *, job_id: str = "") -> None:
        super().__init__(message)
        self.job_id = job_id


class JobFailed(JobError):
    """The job used up its attempts. `.kind`, `.reason` and `.trace` describe the exception of the last attempt."""

    def __init__(self, *, job_id: str, type: str, kind: str, reason: str, trace: str = "", attempt: int = 0) -> None:  # noqa: A002 - the name of this field everywhere
        super().__init__(f"{type} {job_id} failed permanently at attempt {attempt}: {kind}: {reason}", job_id=job_id)
        self.type = type
        self.kind = kind
        self.reason = reason
        self.trace = trace
        self.attempt = attempt


class JobCancelled(JobError):
    """The job was cancelled, from outside or by its handler. It has no result."""

    def __init__(self, *, job_id: str, type: str, reason: str = "") -> None:  # noqa: A002 - as above
        super().__init__(f"{type} {job_id} was cancelled" + (f": {reason}" if reason else ""), job_id=job_id)
        self.type = type
        self.reason = reason


class JobSkipped(JobError):
    """A dependency did not complete, so the job did not run. `options(when="all_done")` runs it regardless."""

    def __init__(self, *, job_id: str, type: str, reason: str = "") -> None:  # noqa: A002 - as above
        super().__init__(
            f"{type} {job_id} was skipped: {reason or 'a dependency did not complete'}",
            job_id=job_id,
        )
        self.type = type
        self.reason = reason


class JobNotFound(JobError, LookupError):
    """There is no such job: it never existed, was rolled back, or its record has expired (`keep=`)."""

    def __init__(self, *, job_id: str, run_id: str = "", known: tuple[str, ...] = ()) -> None:
        """With a `run_id`, `job_id` is a job's name in that workflow run, and `known` lists the names of the run's
        jobs.
        """
        some = ", ".join(known[:10]) + (", …" if len(known) > 10 else "")  # noqa: PLR2004 - keep the message on one line
        super().__init__(
            f"run {run_id} has no job {job_id!r}; it has {some or 'none'}"
            if run_id
            else f"there is no job {job_id!r}; its record may have expired (keep=)",
            job_id=job_id,
        )
        self.run_id = run_id


class RetryRefused(JobError):
    """This job of a run cannot be retried, because it would be skipped again at once: its dependencies did not succeed.
    `.needs` maps each of these dependencies to its state. Retry them instead; the jobs that were skipped because of
    them then run, too.
    """

    def __init__(self, *, job_id: str, name: str, state: str, needs: dict[str, str], reason: str = "") -> None:
        if needs and not reason:
            some = [f"{need} {'failed' if how == 'failed' else f'was {how}'}" for need, how in list(needs.items())[:3]]
            more = f", and {len(needs) - 3} more" if len(needs) > 3 else ""  # noqa: PLR2004 - as many as are named
            them = next(iter(needs)) if len(needs) == 1 else "those"
            reason = (
                f"dependencies did not succeed ({', '.join(some)}{more}); retry {them}, or re-run all failed jobs, and"
                f" {name} runs after them"
            )
        super().__init__(f"{name} was {state} and cannot be retried: {reason}", job_id=job_id)
        self.name = name
        self.state = state
        self.needs = needs


class ResultTimeout(JobError, TimeoutError):
    """The job did not finish within `timeout`. It keeps running; its result can be awaited again."""

    def __init__(self, *, job_id: str, waited: float, state: str) -> None:
        super().__init__(f"{job_id} did not finish within {waited:g} s; it is {state}", job_id=job_id)
        self.waited = waited
        self.state = state


class JobTimeout(JobError, TimeoutError):
    """An attempt ran longer than its `timeout`."""

    def __init__(self, *, job_id: str, type: str, timeout: float) -> None:  # noqa: A002 - as above
        super().__init__(f"{type} {job_id} ran longer than its timeout of {timeout:g} s", job_id=job_id)
        self.type = type
        self.timeout = timeout


class CommandFailed(JobError):
    """A command job failed in `.step` with `.exit_code` or `.signal`; `.output` is the end of its output. `exit_code`
    is None when no process exited by itself.
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
    """This process does not define the job type."""

    def __init__(self, *, type: str, known: tuple[str, ...] = (), job_id: str = "") -> None:  # noqa: A002 - as above
        super().__init__(
            f"this process does not define the job type {type!r}; known: {', '.join(known) or 'none'}. Import the"
            " module that defines it before the worker starts.",
            job_id=job_id,
        )
        self.type = type
        self.known = known


class BadArgument(JobError, ValueError):
    """An argument cannot be serialized. Nothing was enqueued."""

    def __init__(self, *, type: str, argument: str, reason: str, job_id: str = "") -> None:  # noqa: A002 - as above
        super().__init__(
            f"argument {argument!r} of {type} cannot be serialized: {reason}. Pass plain data, or annotate the"
            " parameter with a dataclass, a msgspec Struct or a pydantic model.",
            job_id=job_id,
        )
        self.type = type
        self.argument = argument
        self.reason = reason


class BadResult(JobError, ValueError):
    """A job's result cannot be stored, or cannot be converted to the return annotation."""

    def __init__(self, *, type: str, reason: str, job_id: str = "") -> None:  # noqa: A002 - as above
        super().__init__(
            f"the result of {type} cannot be stored: {reason}. Return plain data that matches the return annotation.",
            job_id=job_id,
        )
        self.type = type
        self.reason = reason


class PayloadTooLarge(JobError, ValueError):
    """Arguments or a result exceed their size limit. Store the data elsewhere and pass a reference to it."""

    def __init__(self, *, type: str, what: str, size: int, limit: int, job_id: str = "") -> None:  # noqa: A002 - as above
        super().__init__(
            f"{type}: {size} bytes of {what} exceed the limit of {limit}; store the data elsewhere and pass a"
            f" reference, or raise {'payload_limit' if what == 'arguments' else 'result_limit'}=",
            job_id=job_id,
        )
        self.type = type
        self.what = what
        self.size = size
        self.limit = limit
