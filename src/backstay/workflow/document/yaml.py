"""A workflow from YAML or JSON. Every problem is found in one go, each with its line and column; with one, there is no
workflow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from backstay.errors import BadDefinition, ConfigError, Problem
from backstay.job.run_model import LARGEST_RUN
from backstay.workflow.definition import Input, JobSpec, Workflow
from backstay.workflow.document.api_format import is_listed, unlisted
from backstay.workflow.document.fields import INPUT, WORKFLOW
from backstay.workflow.document.job_reader import JobReader
from backstay.workflow.document.nodes import Listing, Node, Scalar, Table, Unreadable, compose, decode
from backstay.workflow.document.references import Known, check_met
from backstay.workflow.document.suggestion import meant
from backstay.workflow.document.values import Values
from backstay.workflow.planning import matrix as matrices
from backstay.workflow.planning.inputs import value_of
from backstay.workflow.planning.order import circle

#: Problems that are listed; a document with more is another document.
MOST_PROBLEMS = 100
#: Circles that are looked for, one after another.
MOST_CIRCLES = 20
#: `-` is no workflow over HTTP, and no client sends a path with one of the others in it.
NO_NAMES = ("-", ".", "..")


def read(raw: bytes | str | Mapping[str, Any], *, name: str = "", source: str = "", listed: bool = False) -> Workflow:
    """The workflow of a document: YAML, JSON, or the same as plain data. Raises BadDefinition with all its problems.

    name: what it is called unless the document says. source: where it comes from, for messages. listed: its jobs may
    be a list, as the HTTP API shows them.
    """
    if isinstance(raw, Mapping):
        try:
            raw = msgspec.json.encode(raw)
        except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise ConfigError(f"a workflow as data is made of mappings, lists, text and numbers: {error}") from error
    workflow, problems = inspect(raw, name=name, listed=listed)
    if workflow is None:
        raise BadDefinition(tuple(problems), source=source)
    return workflow


def inspect(raw: bytes | str, *, name: str = "", listed: bool = False) -> tuple[Workflow | None, list[Problem]]:
    """The workflow, or what is wrong with it: never both, never anything else."""
    problems: list[Problem] = []
    try:
        text = decode(raw)
        node = compose(text, problems)
    except Unreadable as error:
        return None, [*problems, error.problem][:MOST_PROBLEMS]
    title = ""
    if listed and is_listed(node):
        node, title = unlisted(cast("Table", node), problems)
    reader = Reader(text)
    workflow = reader.workflow(node, name)
    if title:
        workflow = msgspec.structs.replace(workflow, title=title)
    problems += reader.values.problems
    problems = sorted(set(problems), key=lambda one: (one.line, one.column, one.message))
    if len(problems) > MOST_PROBLEMS:
        problems = [*problems[:MOST_PROBLEMS], Problem(f"and {len(problems) - MOST_PROBLEMS} more")]
    return (None, problems) if problems else (workflow, [])


class Reader:
    """One document."""

    def __init__(self, text: str) -> None:
        self.values = Values(text)

    def workflow(self, node: Node, name: str) -> Workflow:
        values = self.values
        found = values.table(node, "a workflow", WORKFLOW)
        if "name" in found:
            name = values.text(found["name"], "name", most=200).strip()
            if name in NO_NAMES or not name.isprintable():
                values.wrong(found["name"], "name is one line that fits into a path, as in name: ci; not -, . or ..")
        elif not name:
            values.wrong(node, "a workflow lacks 'name', as in name: ci")
        inputs = self._inputs(found["inputs"]) if "inputs" in found else {}
        values.roots = ("inputs", "env")
        env = values.env(found["env"], "env") if "env" in found else {}
        check_met(values, 0, Known(inputs=frozenset(inputs), env=frozenset(env)), "env")
        jobs = self._jobs(found["jobs"], inputs, env) if "jobs" in found else {}
        return Workflow(
            name=name,
            on=self._on(found["on"]) if "on" in found else (),
            inputs=inputs,
            env=env,
            timeout=values.duration(found["timeout"], "timeout") if "timeout" in found else 0.0,
            jobs=jobs,
        )

    def _on(self, node: Node) -> tuple[str, ...]:
        if isinstance(node, Table):
            return tuple(node.items)
        return tuple(self.values.text(one, "on", most=200) for one in self.values.listing(node, "on"))

    # ── inputs ──

    def _inputs(self, node: Node) -> dict[str, Input]:
        return {
            name: self._input(value, f"input {name!r}")
            for name, (_, value) in self.values.entries(node, "inputs").items()
        }

    def _input(self, node: Node, what: str) -> Input:
        values = self.values
        if isinstance(node, Scalar):
            return Input(default=values.scalar(node, what))
        found = values.table(node, what, INPUT)
        kind: Any = ""
        if "type" in found:
            kind = values.text(found["type"], f"type of {what}")
            if kind not in ("string", "number", "boolean"):
                values.wrong(found["type"], f"type of {what} is string, number or boolean; got {kind!r}")
                kind = ""
        options: tuple[Any, ...] = ()
        if "options" in found:
            listed = values.listing(found["options"], f"options of {what}")
            options = tuple(self._of_input(one, f"an option of {what}", Input(type=kind)) for one in listed)
        default = None
        if "default" in found:
            default = self._of_input(found["default"], f"default of {what}", Input(type=kind, options=options))
        return Input(
            description=values.text(found["description"], f"description of {what}", empty=True)
            if "description" in found
            else "",
            required=values.boolean(found["required"], f"required of {what}") if "required" in found else False,
            default=default,
            type=kind,
            options=options,
        )

    def _of_input(self, node: Node, what: str, spec: Input) -> Any:
        """A value that the input may have; null is none."""
        value = self.values.scalar(node, what)
        if value is None:
            return None
        try:
            return value_of(value, spec)
        except ValueError as error:
            self.values.wrong(node, f"{what} {error}")
            return value

    # ── jobs ──

    def _jobs(self, node: Node, inputs: dict[str, Input], env: dict[str, str]) -> dict[str, JobSpec]:
        values = self.values
        entries = values.entries(node, "jobs")
        if isinstance(node, Table) and not node.items:
            values.wrong(node, "there are no jobs; a workflow has at least one, as in jobs: {build: {run: make}}")
        jobs: dict[str, JobSpec] = {}
        for id_, (key, value) in entries.items():
            since = len(values.met)
            jobs[id_] = job = JobReader(values, id_).job(key, value)
            axes = {name for one in (job.matrix.include if job.matrix else ()) for name in one}
            known = Known(
                needs=frozenset(job.needs),
                inputs=frozenset(inputs),
                env=frozenset({**env, **job.env}),
                matrix=frozenset(axes.union(job.matrix.axes if job.matrix else ())),
            )
            check_met(values, since, known, f"job {id_!r}")
        needs = self._needs(entries, jobs, node)
        for around in _circles(needs):
            values.wrong(entries[around[0]][0], f"these jobs wait for one another: {' → '.join(around)}")
        total = sum(matrices.size(job.matrix) if job.matrix else 1 for job in jobs.values())
        if total > LARGEST_RUN // 2:
            values.wrong(node, f"a run would have {total} jobs, and at most {LARGEST_RUN // 2}")
        return jobs

    def _needs(
        self, entries: dict[str, tuple[Scalar, Node]], jobs: dict[str, JobSpec], node: Node
    ) -> dict[str, list[str]]:
        """Who waits for whom, without those that are not there."""
        written = node.items if isinstance(node, Table) else {}
        answer: dict[str, list[str]] = {}
        for id_, job in jobs.items():
            place = entries[id_][1]
            where = place.items["needs"][1] if isinstance(place, Table) and "needs" in place.items else place
            items = where.items if isinstance(where, Listing) else [where]
            answer[id_] = []
            for number, need in enumerate(job.needs):
                at = items[number] if number < len(items) else where
                if need == id_:
                    self.values.wrong(at, f"job {id_!r} needs itself")
                elif need in job.needs[:number]:
                    self.values.wrong(at, f"job {id_!r} needs {need!r} twice")
                elif need not in written:
                    self.values.wrong(at, f"job {id_!r} needs {need!r}, and there is no such job{meant(need, written)}")
                elif need in jobs:
                    answer[id_].append(need)
        return answer


def _circles(needs: dict[str, list[str]]) -> list[list[str]]:
    """Circles that share no job."""
    found: list[list[str]] = []
    while len(found) < MOST_CIRCLES and (around := circle(needs)):
        found.append(around)
        gone = set(around)
        needs = {id_: [need for need in its if need not in gone] for id_, its in needs.items() if id_ not in gone}
    return found
