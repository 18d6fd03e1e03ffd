"""Read one job of a document into a `JobSpec`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from backstay.errors import RunTooLarge
from backstay.job.api.options import MOST_LABELS, MOST_RETRIES
from backstay.job.model import LARGEST_PRIORITY
from backstay.workflow.command.spec import Step
from backstay.workflow.definition import JobSpec, Matrix
from backstay.workflow.document import editor_data
from backstay.workflow.document.fields import BACKOFF, JOB, STEP
from backstay.workflow.document.nodes import DocumentNode, ListNode, MappingNode, ScalarNode
from backstay.workflow.document.value_reader import ValueReader, describe_node
from backstay.workflow.planning import matrix as matrices

MOST_STEPS = 200
#: Roots of references (`needs` in `needs.build.result`) that expressions may use: when the run is planned, when the job
#: starts, and while or after its steps run.
AT_PLANNING = ("inputs", "matrix")
AT_START = ("needs", "inputs", "env", "matrix")
AT_STEP = (*AT_START, "outputs")


class JobReader:
    """Reads one job. Problems are added to the document's `ValueReader`."""

    def __init__(self, values: ValueReader, id_: str) -> None:
        self._values = values
        self._what = f"job {id_!r}"

    def read_job(self, key: ScalarNode, node: DocumentNode) -> JobSpec:
        values, what = self._values, self._what
        found = values.read_mapping(node, what, JOB)
        if "run" in found and "steps" in found:
            values.add_problem(key, f"{what} has both run and steps; move the command into a step")
        elif isinstance(node, MappingNode) and "run" not in node.items and "steps" not in node.items:
            values.add_problem(key, f"{what} has no command; give it run: or steps:")
        job = JobSpec(
            **self._read_planning_keys(found),
            **self._read_start_keys(found),
            **self._read_plain_keys(found),
            steps=self._read_steps(found),
        )
        editor_data.check_size(values, key, what, job)
        return job

    def _read_planning_keys(self, found: dict[str, DocumentNode]) -> dict[str, Any]:
        """Read the keys whose expressions are rendered when the run is planned: they cannot refer to needed jobs."""
        values, what = self._values, self._what
        values.roots = AT_PLANNING
        given: dict[str, Any] = {}
        if "name" in found:
            given["name"] = values.read_template(found["name"], f"name of {what}", values.read_text)
        if "labels" in found:
            given["labels"] = self._read_labels(found["labels"])
        if "needs" in found:
            listed = values.read_list(found["needs"], f"needs of {what}")
            given["needs"] = tuple(values.read_text(one, f"needs of {what}", most=200) for one in listed)
        if "matrix" in found:
            given["matrix"] = self._read_matrix(found["matrix"], f"matrix of {what}")
        return given

    def _read_start_keys(self, found: dict[str, DocumentNode]) -> dict[str, Any]:
        """Read the keys whose expressions are rendered when the job starts: they may refer to needed jobs."""
        values, what = self._values, self._what
        values.roots = AT_START
        given: dict[str, Any] = {}
        if "env" in found:
            given["env"] = values.read_env(found["env"], f"env of {what}")
        if "if" in found:
            given["condition"] = values.read_condition(found["if"], f"if of {what}")
        if "working-directory" in found:
            where = f"working-directory of {what}"
            given["working_directory"] = values.read_template(found["working-directory"], where, values.read_text)
        if "outputs" in found:
            values.roots = AT_STEP
            given["outputs"] = {
                name: values.read_template(value, f"output {name!r} of {what}", values.read_variable)
                for name, (_, value) in values.read_entries(found["outputs"], f"outputs of {what}").items()
            }
        return given

    def _read_plain_keys(self, found: dict[str, DocumentNode]) -> dict[str, Any]:
        values, what = self._values, self._what
        given: dict[str, Any] = {}
        if "shell" in found:
            given["shell"] = values.read_text(found["shell"], f"shell of {what}", most=500)
        if "retries" in found:
            given["retries"] = values.read_integer(found["retries"], f"retries of {what}", 0, MOST_RETRIES)
        if "backoff" in found:
            given["backoff"] = values.read_backoff(found["backoff"], f"backoff of {what}", BACKOFF)
        if "timeout" in found:
            given["timeout"] = values.read_duration(found["timeout"], f"timeout of {what}")
        if "priority" in found:
            of = f"priority of {what}"
            given["priority"] = values.read_integer(found["priority"], of, -LARGEST_PRIORITY, LARGEST_PRIORITY)
        if "continue-on-error" in found:
            given["soft"] = values.read_boolean(found["continue-on-error"], f"continue-on-error of {what}")
        if "metadata" in found:
            given["metadata"] = editor_data.read_metadata(values, found["metadata"], what)
        if "ports" in found:
            given["ports"] = editor_data.read_ports(values, found["ports"], what)
        return given

    def _read_labels(self, node: DocumentNode) -> tuple[str, ...]:
        values, what = self._values, self._what
        labels: list[str] = []
        for one in values.read_list(node, f"labels of {what}"):
            label = values.read_template(one, f"a label of {what}", lambda n, w: values.read_text(n, w, most=200))
            if "," in label:
                values.add_problem(one, f"label {label!r} of {what} contains a comma; write a list")
            labels.append(label)
        if len(labels) > MOST_LABELS:
            values.add_problem(node, f"{what} has {len(labels)} labels, but at most {MOST_LABELS} are allowed")
        return tuple(labels)

    def _read_steps(self, found: dict[str, DocumentNode]) -> tuple[Step, ...]:
        values, what = self._values, self._what
        values.roots = AT_START
        if "run" in found:
            return (Step(run=values.read_template(found["run"], f"run of {what}", values.read_text)),)
        if "steps" not in found:
            return ()
        node = found["steps"]
        if not isinstance(node, ListNode) or not node.items:
            values.add_problem(
                node, f"steps of {what} must be a list of steps, as in [{{run: make}}]; got {describe_node(node)}"
            )
            return ()
        if len(node.items) > MOST_STEPS:
            values.add_problem(node, f"{what} has {len(node.items)} steps, but at most {MOST_STEPS} are allowed")
            return ()
        return tuple(self._read_step(one, f"step {number} of {what}") for number, one in enumerate(node.items, 1))

    def _read_step(self, node: DocumentNode, what: str) -> Step:
        values = self._values
        found = values.read_mapping(node, what, STEP)
        own = found.get("env")
        values.own_env = frozenset(own.items) if isinstance(own, MappingNode) else frozenset()
        given: dict[str, Any] = {"run": ""}
        for word in ("run", "name"):
            if word in found:
                given[word] = values.read_template(found[word], f"{word} of {what}", values.read_text)
        if own is not None:
            given["env"] = values.read_env(own, f"env of {what}")
        if "if" in found:
            values.roots = AT_STEP
            given["condition"] = values.read_condition(found["if"], f"if of {what}")
            values.roots = AT_START
        if "continue-on-error" in found:
            given["continue_on_error"] = values.read_boolean(found["continue-on-error"], f"continue-on-error of {what}")
        if "working-directory" in found:
            where = f"working-directory of {what}"
            given["working_directory"] = values.read_template(found["working-directory"], where, values.read_text)
        if "shell" in found:
            given["shell"] = values.read_text(found["shell"], f"shell of {what}", most=500)
        if "timeout" in found:
            given["timeout"] = values.read_duration(found["timeout"], f"timeout of {what}")
        values.own_env = frozenset()
        return Step(**given)

    def _read_matrix(self, node: DocumentNode, what: str) -> Matrix:
        values = self._values
        before = len(values.problems)
        axes: dict[str, tuple[Any, ...]] = {}
        lists: dict[str, tuple[dict[str, Any], ...]] = {}
        for name, (_, value) in values.read_entries(node, what).items():
            if name in ("include", "exclude"):
                lists[name] = tuple(
                    {
                        axis: values.read_scalar(one, f"{axis} in {name} of {what}")
                        for axis, (_, one) in values.read_entries(entry, f"{name} of {what}").items()
                    }
                    for entry in values.read_list(value, f"{name} of {what}")
                )
            elif not isinstance(value, ListNode) or not value.items:
                values.add_problem(
                    value, f"{name} in {what} must be a list, as in ['3.11', '3.12']; got {describe_node(value)}"
                )
            else:
                axes[name] = tuple(values.read_scalar(one, f"{name} in {what}") for one in value.items)
        matrix = Matrix(axes=axes, **lists)
        if len(values.problems) == before:
            self._check_matrix(matrix, node, what)
        return matrix

    def _check_matrix(self, matrix: Matrix, node: DocumentNode, what: str) -> None:
        values = self._values
        for name in {name: None for entry in matrix.exclude for name in entry if name not in matrix.axes}:
            hint = values.hints.suggest(name, matrix.axes)
            values.add_problem(node, f"exclude of {what} names {name!r}, which is not a list of the matrix{hint}")
        names = len(matrices.value_names(matrix))
        for count, most, things in (
            (matrices.count_combinations(matrix), matrices.MOST, "jobs"),
            (len(matrix.exclude), matrices.MOST_EXCLUDES, "entries of exclude"),
            (names, matrices.MOST_NAMES, "names of values"),
        ):
            if count > most:
                values.add_problem(node, f"{what} makes {count} {things}, but at most {most} are allowed")
                return
        # A document may have many matrices, so each of them counts as work.
        values.effort.spend(1 + matrices.count_combinations(matrix) * names, node.line, node.column)
        try:
            made = Counter(map(matrices.format_values, matrices.expand(matrix)))
        except RunTooLarge as error:
            values.add_problem(node, f"{what}: {error}")
            return
        if not made:
            values.add_problem(node, f"{what} makes no jobs")
        elif (longest := max(map(len, made))) > matrices.LONGEST_VALUES:
            values.add_problem(
                node,
                f"{what} makes a job whose values have {longest} characters, but at most {matrices.LONGEST_VALUES} are"
                " allowed",
            )
        elif twice := [text for text, times in made.items() if times > 1]:
            values.add_problem(node, f"{what} makes two jobs with the same values ({twice[0]})")
