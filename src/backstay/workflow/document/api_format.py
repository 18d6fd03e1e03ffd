"""A workflow as the HTTP API shows it, read as a definition: its jobs are a list, in the words of the worker protocol.

What only a run has (status, times, outputs) is passed over, so that what was shown can be stored again.
"""

from __future__ import annotations

from collections.abc import Iterator

from backstay.errors import Problem
from backstay.workflow.document.nodes import Listing, Node, Scalar, Table

#: Its words for those of a definition.
WORDS = {
    "depends_on": "needs",
    "command": "run",
    "required_labels": "labels",
    "max_retries": "retries",
    "base_secs": "base",
    "max_secs": "max",
}
#: Seconds before the next attempt, where there is to be no back-off.
AT_ONCE = 0.001
#: What a run has made of a job, and of a workflow.
TIMES = ("duration_secs", "started_at", "finished_at")
OF_A_RUN = frozenset(("status", "output", "outputs", "uid", "attempt", "worker_id", "error", *TIMES))
OF_THE_LATEST = frozenset(("version", "run_id", "status"))
#: What `trigger` says where nothing is to start it.
NOTHING = ("", "manual", "api", "cli")


def is_listed(node: Node) -> bool:
    return isinstance(node, Table) and "jobs" in node.items and isinstance(node.items["jobs"][1], Listing)


def unlisted(node: Table, problems: list[Problem]) -> tuple[Table, str]:
    """The same with its jobs by id, and what people call it, if that is not its id."""
    made = Table(node.line, node.column)
    name, title = node.items.get("id") or node.items.get("name"), node.items.get("name")
    for word, (key, value) in node.items.items():
        if word in OF_THE_LATEST or word in ("id", "name"):
            continue
        if word == "jobs" and isinstance(value, Listing):
            made.items[word] = (key, _jobs(value, problems))
        elif word == "trigger":
            if not (isinstance(value, Scalar) and str(value.value or "") in NOTHING):
                made.items["on"] = (key, value)
        else:
            made.items[word] = (key, value)
    if name is not None:
        made.items["name"] = name
    return made, _other(title, name)


def _other(title: tuple[Scalar, Node] | None, name: tuple[Scalar, Node] | None) -> str:
    if title is None or name is None or not isinstance(title[1], Scalar) or not isinstance(name[1], Scalar):
        return ""
    return title[1].text[:200] if title[1].text != name[1].text else ""


def _jobs(jobs: Listing, problems: list[Problem]) -> Table:
    made = Table(jobs.line, jobs.column)
    for job in jobs.items:
        own = job.items.get("id") if isinstance(job, Table) else None
        if not isinstance(job, Table) or own is None or not isinstance(own[1], Scalar) or not own[1].text:
            problems.append(Problem("each of jobs is an object with an id, a command, …", job.line, job.column))
            continue
        id_ = own[1]
        if id_.text in made.items:
            first = made.items[id_.text][0].line
            problems.append(
                Problem(f"job {id_.text!r} is there twice; the first is in line {first}", id_.line, id_.column)
            )
            continue
        made.items[id_.text] = (id_, _job(id_.text, job))
    return made


def _job(id_: str, job: Table) -> Table:
    made = Table(job.line, job.column)
    for word, (key, value) in [*job.items.items(), *_policy(job)]:
        if word == "retry_policy" and isinstance(value, Table):
            continue
        if word == "name" and isinstance(value, Scalar) and value.text == id_:
            continue  # shown where it has none
        if word != "id" and word not in OF_A_RUN and not _is_empty(value):
            made.items[WORDS.get(word, word)] = (key, value)
    return made


def _policy(job: Table) -> Iterator[tuple[str, tuple[Scalar, Node]]]:
    """What `retry_policy` says, as the worker protocol has it, in words of a definition."""
    policy = job.items.get("retry_policy", (None, None))[1]
    for word, (key, value) in policy.items.items() if isinstance(policy, Table) else ():
        if word == "backoff":
            yield word, (key, _backoff(value))
        else:
            yield word, (key, value)


def _backoff(node: Node) -> Node:
    if isinstance(node, Scalar) and node.value == "None":
        return Scalar(node.line, node.column, AT_ONCE, str(AT_ONCE))
    if isinstance(node, Table) and list(node.items) in (["Fixed"], ["Exponential"]):
        ((_, value),) = node.items.values()
        if isinstance(value, Table) and list(value.items) == ["delay_secs"]:
            return value.items["delay_secs"][1]
        if isinstance(value, Table):
            own = {WORDS.get(word, word): found for word, found in value.items.items()}
            return Table(value.line, value.column, own)
    return node


def _is_empty(node: Node) -> bool:
    """As shown where there is nothing: null, 0, "", []."""
    if isinstance(node, Scalar):
        return not node.value
    return isinstance(node, (Listing, Table)) and not node.items
