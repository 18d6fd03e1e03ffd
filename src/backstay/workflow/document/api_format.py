"""Convert a workflow from the format of the HTTP API to the format of a definition. In the HTTP API, `jobs` is a list,
and some fields have other names, such as `depends_on` for `needs`.

Fields that only runs have (status, times, outputs) are ignored, so that a response of the API can be stored again.
"""

from __future__ import annotations

from collections.abc import Iterator

from backstay.errors import Problem
from backstay.workflow.document.nodes import DocumentNode, ListNode, MappingNode, ScalarNode

#: Maps field names of the API to keys of a definition, where they differ.
FIELD_NAMES = {
    "depends_on": "needs",
    "command": "run",
    "required_labels": "labels",
    "max_retries": "retries",
}
#: The delays of each backoff of the API, with the keys of a definition. Each delay has two fields: `…_secs` and `…_ms`.
DELAYS = {"Fixed": {"delay": "base"}, "Exponential": {"base": "base", "max": "max"}}
#: Fields of a job that describe its execution in a run.
TIMES = ("duration_secs", "duration_ms", "started_at", "finished_at")
RUN_FIELDS = frozenset(("status", "output", "outputs", "uid", "attempt", "worker_id", "error", "truncated", *TIMES))
#: Fields of a workflow that describe its latest run.
LATEST_RUN_FIELDS = frozenset(("version", "run_id", "status", "truncated"))
#: Values of `trigger` that mean that nothing starts the workflow automatically.
NO_TRIGGER = ("", "manual", "api", "cli")


def is_api_format(node: DocumentNode) -> bool:
    return isinstance(node, MappingNode) and "jobs" in node.items and isinstance(node.items["jobs"][1], ListNode)


def convert_api_format(node: MappingNode, problems: list[Problem]) -> tuple[MappingNode, str]:
    """Return the definition's mapping, with the jobs by id, and the title ("" if it equals the name)."""
    made = MappingNode(node.line, node.column)
    name, title = node.items.get("id") or node.items.get("name"), node.items.get("name")
    for word, (key, value) in node.items.items():
        if word in LATEST_RUN_FIELDS or word in ("id", "name"):
            continue
        if word == "jobs" and isinstance(value, ListNode):
            made.items[word] = (key, _convert_jobs(value, problems))
        elif word == "trigger":
            if not (isinstance(value, ScalarNode) and str(value.value or "") in NO_TRIGGER):
                made.items["on"] = (key, value)
        else:
            made.items[word] = (key, value)
    if name is not None:
        made.items["name"] = name
    return made, _title(title, name)


def _title(title: tuple[ScalarNode, DocumentNode] | None, name: tuple[ScalarNode, DocumentNode] | None) -> str:
    if title is None or name is None or not isinstance(title[1], ScalarNode) or not isinstance(name[1], ScalarNode):
        return ""
    return title[1].text[:200] if title[1].text != name[1].text else ""


def _convert_jobs(jobs: ListNode, problems: list[Problem]) -> MappingNode:
    made = MappingNode(jobs.line, jobs.column)
    for job in jobs.items:
        own = job.items.get("id") if isinstance(job, MappingNode) else None
        if not isinstance(job, MappingNode) or own is None or not isinstance(own[1], ScalarNode) or not own[1].text:
            problems.append(
                Problem("each entry of jobs must be an object with an id, a command, …", job.line, job.column)
            )
            continue
        id_ = own[1]
        if id_.text in made.items:
            first = made.items[id_.text][0].line
            problems.append(
                Problem(f"job {id_.text!r} is defined twice; the first is in line {first}", id_.line, id_.column)
            )
            continue
        made.items[id_.text] = (id_, _convert_job(id_.text, job))
    return made


def _convert_job(id_: str, job: MappingNode) -> MappingNode:
    made = MappingNode(job.line, job.column)
    for word, (key, value) in [*job.items.items(), *_flatten_retry_policy(job)]:
        if word == "retry_policy" and isinstance(value, MappingNode):
            continue
        if word == "name" and isinstance(value, ScalarNode) and value.text == id_:
            continue  # the API shows the id of a job without a name as its name
        if word != "id" and word not in RUN_FIELDS and not _is_empty(value):
            made.items[FIELD_NAMES.get(word, word)] = (key, value)
    # In the API, a job that names no backoff, or the backoff "None", is retried at once.
    if "retries" in made.items and "backoff" not in made.items:
        at = made.items["retries"][0]
        made.items["backoff"] = at, ScalarNode(at.line, at.column, 0, "0")
    return made


def _flatten_retry_policy(job: MappingNode) -> Iterator[tuple[str, tuple[ScalarNode, DocumentNode]]]:
    """Yield the entries of `retry_policy` as keys of the job itself."""
    policy = job.items.get("retry_policy", (None, None))[1]
    for word, (key, value) in policy.items.items() if isinstance(policy, MappingNode) else ():
        if word == "backoff":
            yield word, (key, _convert_backoff(value))
        else:
            yield word, (key, value)


def _convert_backoff(node: DocumentNode) -> DocumentNode:
    if isinstance(node, ScalarNode) and node.value == "None":
        return ScalarNode(node.line, node.column, 0, "0")
    if isinstance(node, MappingNode) and len(node.items) == 1:
        ((kind, (_, value)),) = node.items.items()
        if kind in DELAYS and isinstance(value, MappingNode):
            own = _convert_delays(value, DELAYS[kind])
            if kind == "Fixed" and list(own) == ["base"]:
                return own["base"][1]
            return MappingNode(value.line, value.column, own)
    return node


def _convert_delays(node: MappingNode, names: dict[str, str]) -> dict[str, tuple[ScalarNode, DocumentNode]]:
    """Return the fields of a backoff as keys of a definition. Milliseconds take precedence: seconds are rounded."""
    own: dict[str, tuple[ScalarNode, DocumentNode]] = {}
    for word, (key, value) in node.items.items():
        name, _, unit = word.rpartition("_")
        if name not in names or unit not in ("secs", "ms"):
            own[word] = key, value
        elif unit == "ms" and isinstance(value, ScalarNode) and type(value.value) in (int, float):
            seconds = value.value / 1000
            own[names[name]] = key, ScalarNode(value.line, value.column, seconds, str(seconds))
        elif unit == "ms" or f"{name}_ms" not in node.items:
            own[names[name]] = key, value
    return own


def _is_empty(node: DocumentNode) -> bool:
    """Whether the API shows this value for an absent one: null, 0, "", []."""
    if isinstance(node, ScalarNode):
        return not node.value
    return isinstance(node, (ListNode, MappingNode)) and not node.items
