"""One job of a document."""

from __future__ import annotations

from typing import Any

from backstay.job.api.options import MOST_LABELS, MOST_RETRIES
from backstay.job.model import LARGEST_PRIORITY
from backstay.workflow.command.spec import Step
from backstay.workflow.definition import JobSpec, Matrix
from backstay.workflow.document.fields import BACKOFF, JOB, STEP
from backstay.workflow.document.nodes import Listing, Node, Scalar, Table
from backstay.workflow.document.suggestion import meant
from backstay.workflow.document.values import Values, kind_of
from backstay.workflow.planning import matrix as matrices

MOST_STEPS = 200
#: What may be spoken of: before anything has run; when the job starts; while or after its commands run.
EARLY = ("inputs", "matrix")
START = ("needs", "inputs", "env", "matrix")
LATE = (*START, "outputs")


class JobReader:
    """Reads one job; what is wrong goes to `values`."""

    def __init__(self, values: Values, id_: str) -> None:
        self._values = values
        self._what = f"job {id_!r}"

    def job(self, key: Scalar, node: Node) -> JobSpec:
        values, what = self._values, self._what
        found = values.table(node, what, JOB)
        if "run" in found and "steps" in found:
            values.wrong(key, f"{what} has both run and steps; put the command into a step of its own")
        elif isinstance(node, Table) and "run" not in node.items and "steps" not in node.items:
            values.wrong(key, f"{what} has nothing to do; give it run: or steps:")
        return JobSpec(**self._early(found), **self._start(found), **self._plain(found), steps=self._commands(found))

    def _early(self, found: dict[str, Node]) -> dict[str, Any]:
        """What is known before anything has run."""
        values, what = self._values, self._what
        values.roots = EARLY
        given: dict[str, Any] = {}
        if "name" in found:
            given["name"] = values.filled(found["name"], f"name of {what}", values.text)
        if "labels" in found:
            given["labels"] = self._labels(found["labels"])
        if "needs" in found:
            listed = values.listing(found["needs"], f"needs of {what}")
            given["needs"] = tuple(values.text(one, f"needs of {what}", most=200) for one in listed)
        if "matrix" in found:
            given["matrix"] = self._matrix(found["matrix"], f"matrix of {what}")
        return given

    def _start(self, found: dict[str, Node]) -> dict[str, Any]:
        """What may speak of the jobs before it."""
        values, what = self._values, self._what
        values.roots = START
        given: dict[str, Any] = {}
        if "env" in found:
            given["env"] = values.env(found["env"], f"env of {what}")
        if "if" in found:
            given["condition"] = values.condition(found["if"], f"if of {what}")
        if "working-directory" in found:
            where = f"working-directory of {what}"
            given["working_directory"] = values.filled(found["working-directory"], where, values.text)
        if "outputs" in found:
            values.roots = LATE
            given["outputs"] = {
                name: values.filled(value, f"output {name!r} of {what}", values.variable)
                for name, (_, value) in values.entries(found["outputs"], f"outputs of {what}").items()
            }
        return given

    def _plain(self, found: dict[str, Node]) -> dict[str, Any]:
        values, what = self._values, self._what
        given: dict[str, Any] = {}
        if "shell" in found:
            given["shell"] = values.text(found["shell"], f"shell of {what}", most=500)
        if "retries" in found:
            given["retries"] = values.whole(found["retries"], f"retries of {what}", 0, MOST_RETRIES)
        if "backoff" in found:
            given["backoff"] = values.backoff(found["backoff"], f"backoff of {what}", BACKOFF)
        if "timeout" in found:
            given["timeout"] = values.duration(found["timeout"], f"timeout of {what}")
        if "priority" in found:
            of = f"priority of {what}"
            given["priority"] = values.whole(found["priority"], of, -LARGEST_PRIORITY, LARGEST_PRIORITY)
        if "continue-on-error" in found:
            given["soft"] = values.boolean(found["continue-on-error"], f"continue-on-error of {what}")
        return given

    def _labels(self, node: Node) -> tuple[str, ...]:
        values, what = self._values, self._what
        labels: list[str] = []
        for one in values.listing(node, f"labels of {what}"):
            label = values.filled(one, f"a label of {what}", lambda n, w: values.text(n, w, most=200))
            if "," in label:
                values.wrong(one, f"label {label!r} of {what} has a comma; write a list")
            labels.append(label)
        if len(labels) > MOST_LABELS:
            values.wrong(node, f"{what} has {len(labels)} labels, and at most {MOST_LABELS}")
        return tuple(labels)

    def _commands(self, found: dict[str, Node]) -> tuple[Step, ...]:
        values, what = self._values, self._what
        values.roots = START
        if "run" in found:
            return (Step(run=values.filled(found["run"], f"run of {what}", values.text)),)
        if "steps" not in found:
            return ()
        node = found["steps"]
        if not isinstance(node, Listing) or not node.items:
            values.wrong(node, f"steps of {what} is a list of steps, as in [{{run: make}}]; got {kind_of(node)}")
            return ()
        if len(node.items) > MOST_STEPS:
            values.wrong(node, f"{what} has {len(node.items)} steps, and at most {MOST_STEPS}")
            return ()
        return tuple(self._step(one, f"step {number} of {what}") for number, one in enumerate(node.items, 1))

    def _step(self, node: Node, what: str) -> Step:
        values = self._values
        found = values.table(node, what, STEP)
        own = found.get("env")
        values.own_env = frozenset(own.items) if isinstance(own, Table) else frozenset()
        given: dict[str, Any] = {"run": ""}
        for word in ("run", "name"):
            if word in found:
                given[word] = values.filled(found[word], f"{word} of {what}", values.text)
        if own is not None:
            given["env"] = values.env(own, f"env of {what}")
        if "if" in found:
            values.roots = LATE
            given["condition"] = values.condition(found["if"], f"if of {what}")
            values.roots = START
        if "continue-on-error" in found:
            given["continue_on_error"] = values.boolean(found["continue-on-error"], f"continue-on-error of {what}")
        if "working-directory" in found:
            where = f"working-directory of {what}"
            given["working_directory"] = values.filled(found["working-directory"], where, values.text)
        if "shell" in found:
            given["shell"] = values.text(found["shell"], f"shell of {what}", most=500)
        if "timeout" in found:
            given["timeout"] = values.duration(found["timeout"], f"timeout of {what}")
        values.own_env = frozenset()
        return Step(**given)

    def _matrix(self, node: Node, what: str) -> Matrix:
        values = self._values
        before = len(values.problems)
        axes: dict[str, tuple[Any, ...]] = {}
        lists: dict[str, tuple[dict[str, Any], ...]] = {}
        for name, (_, value) in values.entries(node, what).items():
            if name in ("include", "exclude"):
                lists[name] = tuple(
                    {
                        axis: values.scalar(one, f"{axis} in {name} of {what}")
                        for axis, (_, one) in values.entries(entry, f"{name} of {what}").items()
                    }
                    for entry in values.listing(value, f"{name} of {what}")
                )
            elif not isinstance(value, Listing) or not value.items:
                values.wrong(value, f"{name} in {what} is a list, as in ['3.11', '3.12']; got {kind_of(value)}")
            else:
                axes[name] = tuple(values.scalar(one, f"{name} in {what}") for one in value.items)
        matrix = Matrix(axes=axes, **lists)
        if len(values.problems) == before:
            self._check_matrix(matrix, node, what)
        return matrix

    def _check_matrix(self, matrix: Matrix, node: Node, what: str) -> None:
        values = self._values
        for name in {name: None for entry in matrix.exclude for name in entry if name not in matrix.axes}:
            values.wrong(
                node, f"exclude of {what} speaks of {name!r}, which is no list of it{meant(name, matrix.axes)}"
            )
        if (count := matrices.size(matrix)) > matrices.MOST:
            values.wrong(node, f"{what} makes {count} jobs, and at most {matrices.MOST}")
            return
        made: dict[str, int] = {}
        for one in matrices.spread(matrix):
            text = matrices.suffix(one)
            made[text] = made.get(text, 0) + 1
        if not made:
            values.wrong(node, f"{what} makes no job at all")
        elif twice := [text for text, times in made.items() if times > 1]:
            values.wrong(node, f"{what} makes two jobs ({twice[0]}) that nothing tells apart")
