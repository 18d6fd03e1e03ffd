"""Apply a history of commands to the model of the job store and to a real store, and compare them after each action."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from backstay.job.exchange import Claimed, ExchangeCommand, ExchangeReply, Renewal
from backstay.job.model import AGEING, FINAL, Failure, Job
from support.job_model.store import ModelEngine, ModelStore

SECOND = 1_000_000
LEASE = 10 * SECOND
OOPS = Failure("Oops", "it broke", "trace", attempt=1, at=7)

#: The delays between two actions, in µs; mostly from the first tuple.
TIMES = (0, 0, 0, 1, 1, SECOND - 1, SECOND, SECOND, SECOND + 1, 3 * SECOND, LEASE - 1, LEASE, LEASE + 1, 2 * LEASE)
FAR = (*TIMES, AGEING - 1, AGEING, AGEING + 1)
#: The bytes that hypothesis generates for one action. With fewer, most of its choices would be the first option.
DRAWS = 24
scripts = st.lists(st.binary(min_size=DRAWS, max_size=DRAWS), min_size=8, max_size=40)

Apply = Callable[[int, str, tuple[Any, ...], dict[str, Any]], Any]


class Dice:
    """Makes choices from bytes that hypothesis generates: one byte per choice. Without bytes left, each choice is the
    first option.
    """

    def __init__(self, data: bytes) -> None:
        self._data = iter(data)

    def pick(self, options: Any) -> Any:
        options = tuple(options)
        return options[next(self._data, 0) % len(options)]

    def some(self, options: Any, most: int) -> list[Any]:
        """Return up to `most` of the options, each once."""
        options = list(options)
        count = min(most, len(options), self.pick(range(most + 1)))
        return [options.pop(next(self._data, 0) % len(options)) for _ in range(count)]


class Lockstep:
    """Applies each command of a history to the model and to a real store, and compares the replies and the jobs.

    `apply(now, verb, args, named)` sends a command to the real store. `space` numbers the histories of a store, so that
    their job ids differ. A subclass defines one method per action, which chooses and applies commands.
    """

    #: The names of the actions; one that occurs more often is chosen more often.
    actions: Sequence[str] = ()

    def __init__(self, apply: Apply, now: int, space: int) -> None:
        self.now = now
        self._apply = apply
        self.model = ModelStore()
        self._engine = ModelEngine(self.model, lambda: self.now)
        self._ids = (f"0-{space:08x}{nth:04x}" for nth in itertools.count())
        #: The fences of the real store by those of the model.
        self._fences: dict[int, int] = {}
        self.history: list[str] = []

    def play(self, script: list[bytes]) -> None:
        for data in script:
            dice = Dice(data)
            getattr(self, f"_{dice.pick(self.actions)}")(dice)
            self._compare()
            self.now += dice.pick(FAR if dice.pick((0, 0, 0, 1)) else TIMES)
        self._compare_queues()

    # ── commands ──

    def _both(self, verb: str, *args: Any, lenient: bool = False, **named: Any) -> Any:
        """Apply a command to both stores, compare their replies unless `lenient`, and return the model's."""
        self.history.append(f"{self.now}: {verb} {', '.join(map(shown, args))} {named or ''}")
        expected = self._engine.apply(getattr(self.model, verb)(*args, **named))
        self.history.append(f"    -> {shown(expected)}")
        reply = self._apply(self.now, verb, tuple(self._translated(arg) for arg in args), named)
        if verb == "exchange":
            for model_job, job in zip(expected.jobs, reply.jobs, strict=False):
                self._fences[model_job.fence] = job.fence
            if lenient or _polls_in_time(expected, reply, args[0].claim.want):
                expected, reply = (msgspec.structs.replace(one, next_in=None) for one in (expected, reply))
                lenient = False
        if not lenient:
            self._assert_equal(self._comparable(reply), self._comparable(expected, translate=True))
        return expected

    def _translated(self, arg: Any) -> Any:
        """Replace the model's fences in an argument by those of the real store."""
        if isinstance(arg, ExchangeCommand):
            finishes = tuple(
                msgspec.structs.replace(finish, fence=self._fence(finish.fence)) for finish in arg.finishes
            )
            return msgspec.structs.replace(arg, finishes=finishes)
        if isinstance(arg, list) and arg and isinstance(arg[0], Renewal):
            return [Renewal(lease.job, self._fence(lease.fence), lease.progress) for lease in arg]
        return self._fences.get(arg, arg) if isinstance(arg, int) else arg

    def _fence(self, fence: int) -> int:
        return self._fences.get(fence, fence)

    # ── comparison ──

    def _comparable(self, reply: Any, *, translate: bool = False) -> Any:
        """Return the parts of a reply that must be equal. `translate`: the reply has fences of the model."""
        match reply:
            case ExchangeReply():
                fields = msgspec.structs.asdict(reply)
                fields["jobs"] = {nth: self._comparable(job, translate=translate) for nth, job in enumerate(reply.jobs)}
                fields["ready"] = _unkeyed(reply.ready)
                return fields
            case Claimed():
                fields = msgspec.structs.asdict(reply)
                if translate:
                    fields["fence"] = self._fence(reply.fence)
                return fields
            case Job():
                return self._comparable_job(reply, translate=translate)
            case {**counts} if reply and all(isinstance(count, int) for count in counts.values()):
                return _unkeyed(reply)
            case _:
                return reply

    def _comparable_job(self, job: Job, *, translate: bool) -> dict[str, Any]:
        fields = msgspec.structs.asdict(job)
        fields["waits_for"] = sorted(job.waits_for) if job.state == "blocked" else ()
        fields["after"] = sorted(job.after)
        error = job.error if job.state == "failed" else None
        fields["error"] = error and (error if error.kind == OOPS.kind else "some")
        if job.state != "running":
            for name in ("fence", "worker", "lease_until", "started", "progress", "cancel_requested"):
                del fields[name]
        elif translate:
            fields["fence"] = self._fence(job.fence)
        return fields

    def _compare(self) -> None:
        """Compare the states of both stores. Called after every action."""
        self._compare_jobs()

    def _compare_jobs(self) -> None:
        expected = self._engine.apply(self.model.list_jobs(limit=1000))
        found = self._apply(self.now, "list_jobs", (), {"limit": 1000})
        self._assert_equal(
            {job.id: self._comparable(job) for job in found},
            {job.id: self._comparable(job, translate=True) for job in expected},
        )

    def _compare_queues(self) -> None:
        # A store may list a queue without jobs or not. Of jobs with several priorities, `oldest_due` may be that of the
        # next job instead of the oldest.
        expected, found = (
            {queue.name: msgspec.structs.replace(queue, oldest_due=0) for queue in queues if _count_jobs(queue)}
            for queues in (
                self._engine.apply(self.model.queues()),
                self._apply(self.now, "queues", (), {}),
            )
        )
        self._assert_equal(found, expected)

    def _assert_equal(self, found: Any, expected: Any) -> None:
        if found != expected:
            differences = "\n".join(_differences(found, expected, ""))
            raise AssertionError("\n".join([f"the model and the store differ:\n{differences}\nafter", *self.history]))


def shown(value: Any) -> str:
    """Return a short representation that leaves out default values."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shown, value))}]"
    if not isinstance(value, msgspec.Struct):
        return repr(value)
    fields = [
        f"{field.name}={shown(getattr(value, field.name))}"
        for field in msgspec.structs.fields(value)
        if getattr(value, field.name) != field.default and field.name not in ("args", "keep_failed", "meta")
    ]
    return f"{type(value).__name__}({', '.join(fields)})"


def _differences(found: Any, expected: Any, at: str) -> Iterator[str]:
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in {**found, **expected}:
            yield from _differences(found.get(key, "nothing"), expected.get(key, "nothing"), f"{at} {key}")
    elif found != expected:
        yield f"{at}: the store has {found!r}, the model {expected!r}"


def _polls_in_time(expected: ExchangeReply, reply: ExchangeReply, want: int) -> bool:
    """Whether the store asks the worker to poll again early enough. A worker that got all the jobs it wanted polls
    anyway.
    """
    if expected.next_in is None or len(expected.jobs) >= want:
        return True
    return reply.next_in is not None and reply.next_in <= expected.next_in


def _count_jobs(queue: Any) -> int:
    return sum(getattr(queue, state) for state in ("scheduled", "blocked", "pending", "running", *FINAL))


def _unkeyed(ready: dict[str, int]) -> dict[str, int]:
    """Leave out the jobs with a concurrency key: each store reports them as ready at its own time."""
    return {type_: count for type_, count in ready.items() if type_ != "keyed"}
