"""Read a workflow definition from YAML or JSON. One pass finds every problem, each with its line and column; a document
with a problem gives no definition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, cast

import msgspec

from backstay.errors import BadDefinition, ConfigError, Problem
from backstay.job.run_model import LARGEST_RUN
from backstay.workflow.definition import Input, JobSpec, Workflow
from backstay.workflow.document.api_format import convert_api_format, is_api_format
from backstay.workflow.document.effort import Effort, UnreadableDocument
from backstay.workflow.document.fields import INPUT, WORKFLOW
from backstay.workflow.document.job_reader import JobReader
from backstay.workflow.document.nodes import (
    DocumentNode,
    ListNode,
    MappingNode,
    ScalarNode,
    compose,
    decode,
)
from backstay.workflow.document.references import KnownNames, check_references
from backstay.workflow.document.value_reader import ValueReader
from backstay.workflow.planning import matrix as matrices
from backstay.workflow.planning.inputs import coerce_input

#: The largest number of problems that are reported.
MOST_PROBLEMS = 100
#: The largest number of dependency cycles that are reported.
MOST_CYCLES = 20
#: In paths of the HTTP API `-` means "no workflow", and clients normalise `.` and `..` away.
INVALID_NAMES = ("-", ".", "..")


def read(
    raw: bytes | str | Mapping[str, Any], *, name: str = "", source: str = "", api_format: bool = False
) -> Workflow:
    """Read the definition from YAML, JSON or plain data. Raises BadDefinition with all problems.

    name: the workflow's name if the document has none. source: the document's origin, for messages. api_format: also
    accept the format of the HTTP API, in which jobs are a list.
    """
    if isinstance(raw, Mapping):
        try:
            raw = msgspec.json.encode(raw)
        except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise ConfigError(
                f"a workflow as data must consist of mappings, lists, text and numbers: {error}"
            ) from error
    workflow, problems = inspect(raw, name=name, api_format=api_format)
    if workflow is None:
        raise BadDefinition(tuple(problems), source=source)
    return workflow


def inspect(raw: bytes | str, *, name: str = "", api_format: bool = False) -> tuple[Workflow | None, list[Problem]]:
    """Read the definition from a document. Returns (definition, []), or (None, problems) if there are problems."""
    problems: list[Problem] = []
    effort = Effort()
    workflow: Workflow | None = None
    last: list[Problem] = []
    reader: DocumentReader | None = None
    try:
        text = decode(raw)
        node = compose(text, problems, effort)
        title = ""
        if api_format and is_api_format(node):
            node, title = convert_api_format(cast("MappingNode", node), problems)
        reader = DocumentReader(text, effort)
        workflow = reader.read_workflow(node, name)
        if title:
            workflow = msgspec.structs.replace(workflow, title=title)
    except UnreadableDocument as error:
        last.append(error.problem)
    if reader is not None:
        problems += reader.values.problems
    problems = sorted(set(problems), key=lambda one: (one.line, one.column, one.message))
    if len(problems) > MOST_PROBLEMS:
        problems = [*problems[:MOST_PROBLEMS], Problem(f"and {len(problems) - MOST_PROBLEMS} more")]
    problems += last
    return (None, problems) if problems else (workflow, [])


class DocumentReader:
    """Reads a workflow definition from the parsed nodes of one YAML or JSON document, and collects problems."""

    def __init__(self, text: str, effort: Effort) -> None:
        self.values = ValueReader(text, effort)

    def read_workflow(self, node: DocumentNode, name: str) -> Workflow:
        values = self.values
        found = values.read_mapping(node, "a workflow", WORKFLOW)
        if "name" in found:
            name = values.read_text(found["name"], "name", most=200).strip()
            if name in INVALID_NAMES or not name.isprintable():
                values.add_problem(found["name"], "name must be one printable line, as in name: ci; not -, . or ..")
        elif not name:
            values.add_problem(node, "a workflow lacks 'name', as in name: ci")
        inputs = self._read_inputs(found["inputs"]) if "inputs" in found else {}
        values.roots = ("inputs", "env")
        env = values.read_env(found["env"], "env") if "env" in found else {}
        check_references(values, 0, KnownNames(inputs=frozenset(inputs), env=frozenset(env)), "env")
        jobs = self._read_jobs(found["jobs"], inputs, env) if "jobs" in found else {}
        return Workflow(
            name=name,
            on=self._read_on(found["on"]) if "on" in found else (),
            inputs=inputs,
            env=env,
            timeout=values.read_duration(found["timeout"], "timeout") if "timeout" in found else 0.0,
            jobs=jobs,
        )

    def _read_on(self, node: DocumentNode) -> tuple[str, ...]:
        if isinstance(node, MappingNode):
            return tuple(node.items)
        return tuple(self.values.read_text(one, "on", most=200) for one in self.values.read_list(node, "on"))

    # ── inputs ──

    def _read_inputs(self, node: DocumentNode) -> dict[str, Input]:
        return {
            name: self._read_input(value, f"input {name!r}")
            for name, (_, value) in self.values.read_entries(node, "inputs").items()
        }

    def _read_input(self, node: DocumentNode, what: str) -> Input:
        values = self.values
        if isinstance(node, ScalarNode):
            return Input(default=values.read_scalar(node, what))
        found = values.read_mapping(node, what, INPUT)
        kind: Any = ""
        if "type" in found:
            kind = values.read_text(found["type"], f"type of {what}")
            if kind not in ("string", "number", "boolean"):
                values.add_problem(found["type"], f"type of {what} must be string, number or boolean; got {kind!r}")
                kind = ""
        options: tuple[Any, ...] = ()
        if "options" in found:
            listed = values.read_list(found["options"], f"options of {what}")
            options = tuple(self._read_input_value(one, f"an option of {what}", Input(type=kind)) for one in listed)
        default = None
        if "default" in found:
            default = self._read_input_value(found["default"], f"default of {what}", Input(type=kind, options=options))
        return Input(
            description=values.read_text(found["description"], f"description of {what}", empty=True)
            if "description" in found
            else "",
            required=values.read_boolean(found["required"], f"required of {what}") if "required" in found else False,
            default=default,
            type=kind,
            options=options,
        )

    def _read_input_value(self, node: DocumentNode, what: str, spec: Input) -> Any:
        """Read the default or one of the options of an input, converted to the input's type. Returns None for null."""
        value = self.values.read_scalar(node, what)
        if value is None:
            return None
        try:
            return coerce_input(value, spec)
        except ValueError as error:
            self.values.add_problem(node, f"{what} {error}")
            return value

    # ── jobs ──

    def _read_jobs(self, node: DocumentNode, inputs: dict[str, Input], env: dict[str, str]) -> dict[str, JobSpec]:
        values = self.values
        entries = values.read_entries(node, "jobs")
        if isinstance(node, MappingNode) and not node.items:
            values.add_problem(node, "the workflow has no jobs; add at least one, as in jobs: {build: {run: make}}")
        jobs: dict[str, JobSpec] = {}
        input_names, variables = frozenset(inputs), frozenset(env)
        for id_, (key, value) in entries.items():
            since = len(values.expressions)
            jobs[id_] = job = JobReader(values, id_).read_job(key, value)
            known = KnownNames(
                needs=frozenset(job.needs),
                inputs=input_names,
                env=variables,
                job_env=frozenset(job.env),
                matrix=frozenset(matrices.value_names(job.matrix) if job.matrix else ()),
            )
            check_references(values, since, known, f"job {id_!r}")
        needs = self._check_needs(entries, jobs, node)
        for around in _find_cycles(needs):
            values.add_problem(entries[around[0]][0], f"these jobs form a cycle: {' → '.join(around)}")
        total = sum(matrices.count_combinations(job.matrix) if job.matrix else 1 for job in jobs.values())
        if total > LARGEST_RUN // 2:
            values.add_problem(node, f"a run would have {total} jobs, but at most {LARGEST_RUN // 2} are allowed")
        return jobs

    def _check_needs(
        self, entries: dict[str, tuple[ScalarNode, DocumentNode]], jobs: dict[str, JobSpec], node: DocumentNode
    ) -> dict[str, list[str]]:
        """Return the dependencies of each job, without unknown ones. Bad entries of `needs` become problems."""
        written = node.items if isinstance(node, MappingNode) else {}
        answer: dict[str, list[str]] = {}
        for id_, job in jobs.items():
            place = entries[id_][1]
            where = place.items["needs"][1] if isinstance(place, MappingNode) and "needs" in place.items else place
            items = where.items if isinstance(where, ListNode) else [where]
            answer[id_] = []
            seen: set[str] = set()
            for number, need in enumerate(job.needs):
                at = items[number] if number < len(items) else where
                repeated = need in seen
                seen.add(need)
                if need == id_:
                    self.values.add_problem(at, f"job {id_!r} needs itself")
                elif repeated:
                    self.values.add_problem(at, f"job {id_!r} needs {need!r} twice")
                elif need not in written:
                    hint = self.values.hints.suggest(need, written)
                    self.values.add_problem(at, f"job {id_!r} needs {need!r}, which does not exist{hint}")
                elif need in jobs:
                    answer[id_].append(need)
        return answer


def _find_cycles(needs: dict[str, list[str]]) -> list[list[str]]:
    """Return the dependency cycles, at most MOST_CYCLES. No job is in two of the returned cycles."""
    found: list[list[str]] = []
    while len(found) < MOST_CYCLES and (around := _find_cycle(needs)):
        found.append(around)
        gone = set(around)
        needs = {id_: [need for need in its if need not in gone] for id_, its in needs.items() if id_ not in gone}
    return found


def _find_cycle(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the jobs of one dependency cycle, with the first one repeated at the end; empty if there is none."""
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        # graphlib lists each job before the jobs that need it; the message lists it before the jobs that it needs.
        return list(reversed(error.args[1]))
    return []
