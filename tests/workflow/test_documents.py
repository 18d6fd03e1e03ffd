"""The parts of a document by themselves: matrix, inputs, schema, versions, what a run is made of."""

import json
import re

import pytest

from backstay import BadInput, WorkflowError, WorkflowNotFound
from backstay.job import metadata
from backstay.job.model import LARGEST_PRIORITY
from backstay.job.reserved import COMMAND, COMMANDS, DECIDE, INTERNAL
from backstay.sync import Backstay
from backstay.workflow.command import spec as command_spec
from backstay.workflow.definition import Input, Matrix, Workflow, as_json
from backstay.workflow.document.fields import TABLES
from backstay.workflow.document.schema import json_schema, reference_table
from backstay.workflow.document.yaml import inspect, read
from backstay.workflow.planning.inputs import checked
from backstay.workflow.planning.keys import spread_keys
from backstay.workflow.planning.matrix import size, spread, suffix
from backstay.workflow.planning.plan import new_run
from backstay.workflow.run import unpack_doc


@pytest.fixture
def stay():
    with Backstay("memory://") as stay:
        yield stay


def made(stay, text, inputs=None):
    run = new_run(stay._core, read(text, name="x"), inputs or {}, version=3)
    doc = unpack_doc(run.doc)
    return run, {job.key: job for job in doc.jobs}, {job.id: job for job in run.jobs}


# ── matrix ──


def test_a_matrix_is_all_combinations():
    matrix = Matrix(axes={"a": (1, 2), "b": ("x", "y")})
    assert spread(matrix) == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"}]
    assert size(matrix) == 4
    assert [suffix(one) for one in spread(matrix)] == ["1, x", "1, y", "2, x", "2, y"]


def test_exclude_takes_away_and_include_adds():
    matrix = Matrix(
        axes={"a": (1, 2), "b": ("x", "y")},
        exclude=({"a": 1, "b": "y"},),
        include=({"a": 2, "more": True}, {"a": 3, "b": "z"}),
    )
    assert spread(matrix) == [
        {"a": 1, "b": "x"},
        {"a": 2, "b": "x", "more": True},
        {"a": 2, "b": "y", "more": True},
        {"a": 3, "b": "z"},
    ]


def test_a_matrix_of_includes_alone():
    assert spread(Matrix(include=({"a": 1}, {"b": 2}))) == [{"a": 1}, {"b": 2}]


def test_one_and_true_are_not_the_same():
    assert spread(Matrix(axes={"a": (1, True)}, exclude=({"a": True},))) == [{"a": 1}]


def test_keys_tell_items_apart():
    assert spread_keys("t", ["3.11", 3]) == ["t (3.11)", "t (3)"]
    assert spread_keys("t", ["a", "a"]) == ["t (0)", "t (1)"]
    assert spread_keys("t", [{"a": 1}]) == ["t (0)"]
    assert spread_keys("t", ["x" * 100, "\x1b"]) == ["t (0)", "t (1)"]


# ── inputs ──


WORKFLOW = Workflow(
    name="w",
    inputs={
        "version": Input(required=True),
        "count": Input(type="number", default=1),
        "dry": Input(type="boolean"),
        "where": Input(default="a", options=("a", "b")),
    },
)


def test_inputs_have_defaults_and_are_read_as_what_they_are():
    assert checked(WORKFLOW, {"version": "1"}) == {"version": "1", "count": 1, "dry": None, "where": "a"}
    assert checked(WORKFLOW, {"version": 1.5, "count": "2", "dry": "true"})["dry"] is True


def test_every_wrong_input_is_named():
    with pytest.raises(BadInput) as caught:
        checked(WORKFLOW, {"count": "many", "dry": 1, "where": "c", "verison": 1})
    for words in ("'version' is missing", "is a number", "true or false", "is one of", "did you mean 'version'?"):
        assert words in str(caught.value)
    with pytest.raises(BadInput, match="got list"):
        checked(WORKFLOW, {"version": [1]})


# ── what a run is made of ──


def test_a_job_becomes_a_command(stay):
    run, doc, _ = made(
        stay,
        "inputs: {v: 1}\nenv: {A: 'a${{ inputs.v }}'}\njobs: {b: {run: 'echo ${{ env.A }}', env: {B: '${{ env.A }}b'},"
        " labels: ['l${{ inputs.v }}'], retries: 2, backoff: 3, timeout: 9, priority: 4, continue-on-error: true}}",
        {"v": 2},
    )
    (job,) = run.jobs
    assert (job.type, job.queue, job.run, job.retries, job.priority) == (COMMAND, COMMANDS, run.id, 2, 4)
    assert (job.labels, job.soft, job.when) == (("l2",), True, "all_success")
    spec = command_spec.decode(job.args)
    assert spec.env == {"A": "a2", "B": "a2b"}
    assert spec.steps[0].run == "echo a2"
    carried = metadata.unpack(job.meta)
    assert (carried.key, carried.timeout, carried.backoff.base) == ("b", 9.0, 3.0)
    assert (run.workflow, run.version) == ("x", 3)
    assert doc["b"].id == job.id
    assert doc["b"].command == "echo a2"


def test_plain_conditions_are_left_to_the_store(stay):
    text = "jobs: {a: {run: x}, b: {run: x, needs: a, if: always()}, c: {run: x, needs: a, if: '${{ failure() }}'}}"
    _, doc, jobs = made(stay, text)
    assert [jobs[doc[key].id].when for key in "abc"] == ["all_success", "all_done", "any_failure"]
    assert {job.type for job in jobs.values()} == {COMMAND}
    assert jobs[doc["b"].id].after == (doc["a"].id,)


def test_other_conditions_and_texts_that_speak_of_needs_are_decided_first(stay):
    text = """
jobs:
  a: {run: x}
  b: {run: x, needs: a, if: "needs.a.outputs.y == '1'", labels: [gpu]}
  c: {run: "echo ${{ needs.a.outputs.y }}", needs: a}
  d: {run: x, needs: a, if: "always() && needs.a.result == 'failure'"}
  e: {run: x, if: "failure()"}
"""
    _, doc, jobs = made(stay, text)
    decided = {key: jobs[doc[key].id] for key in "bcde"}
    assert {job.type for job in decided.values()} == {DECIDE}
    assert {(job.queue, job.labels, job.priority) for job in decided.values()} == {(INTERNAL, (), LARGEST_PRIORITY)}
    assert [job.when for job in decided.values()] == ["all_success", "all_success", "all_done", "all_done"]
    assert doc["b"].labels == ("gpu",)


def test_a_matrix_is_waited_for_as_a_whole(stay):
    text = (
        "jobs: {z: {run: x, needs: t}, t: {name: T, run: 'x ${{ matrix.p }}', matrix: {p: [1, 2]}},"
        " u: {run: x, name: 'U${{ matrix.q }}', matrix: {q: [7]}, needs: [t]}}"
    )
    run, doc, jobs = made(stay, text)
    assert list(doc) == ["z", "t (1)", "t (2)", "u (7)"]
    assert [job.name for job in doc.values()] == ["z", "T (1)", "T (2)", "U7"]
    assert set(jobs[doc["z"].id].after) == {doc["t (1)"].id, doc["t (2)"].id}
    assert doc["z"].needs == ("t (1)", "t (2)")
    order = [job.id for job in run.jobs]
    assert order.index(doc["z"].id) > order.index(doc["t (2)"].id), "blockers come first"


def test_an_input_is_never_read_as_an_expression(stay):
    sly = "${{ inputs.other }} ${{ broken"
    text = "inputs: {a: '', other: s3cret}\njobs: {b: {run: 'echo ${{ inputs.a }}', env: {E: '${{ inputs.a }}'}}}"
    run, _, _ = made(stay, text, {"a": sly})
    spec = command_spec.decode(run.jobs[0].args)
    assert spec.steps[0].run == f"echo {sly}"
    assert spec.env["E"] == sly


# ── stored ──


def test_the_same_document_is_the_same_version(stay):
    text = "name: ci\njobs: {a: {run: x}}"
    assert stay.workflows.put(text).version == 1
    assert stay.workflows.put("name:   ci\njobs:\n  a:\n    run: x\n").version == 1
    assert stay.workflows.put(text.replace("run: x", "run: y")).version == 2
    assert stay.workflows.get("ci").definition.jobs["a"].steps[0].run == "y"
    assert stay.workflows.get("ci", 1).definition.jobs["a"].steps[0].run == "x"
    run = stay.workflows.start("ci", version=1)
    assert run.info().version == 1
    assert run.jobs()[0].command == "x"
    for name, version in (("nobody", 0), ("ci", 7)):
        with pytest.raises(WorkflowNotFound):
            stay.workflows.get(name, version)
        with pytest.raises(WorkflowNotFound):
            stay.workflows.start(name, version=version)


def test_a_file_gives_its_name(stay, tmp_path):
    path = tmp_path / "nightly.yml"
    path.write_text("jobs: {a: {run: x}}")
    assert stay.workflows.put(path).name == "nightly"


def test_a_workflow_of_python_is_started_where_it_is_defined(stay):
    @stay.workflow
    def here(flow, n: int = 3, word: str = "x"): ...

    run = here.start(n=4)
    assert run.status() == "success"
    assert run.wait() == "success"
    assert run.outputs == {}
    stored = stay.workflows.get("here").definition
    assert stored.source == "python"
    assert stored.inputs == {"n": Input(default=3), "word": Input(default="x")}
    assert run.info().inputs == {"n": 4, "word": "x"}
    with Backstay(engine=stay.engine) as stranger, pytest.raises(WorkflowError, match="defined in Python"):
        stranger.workflows.start("here")


# ── the schema ──


def test_the_schema_speaks_of_every_key():
    schema = json_schema()
    json.dumps(schema)
    assert set(schema["properties"]) == {field.name for field in TABLES["workflow"]}
    assert set(schema["$defs"]["job"]["properties"]) == {field.name for field in TABLES["job"]}
    for name, fields in TABLES.items():
        table = reference_table(name)
        for field in fields:
            assert f"| `{field.name}` |" in table


KINDS = {"string": str, "number": (int, float), "integer": int, "boolean": bool, "object": dict, "array": list}


def fits(value, schema, root):
    """Whether a value is what a schema says, as far as ours go."""
    if "$ref" in schema:
        return fits(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    kinds = schema.get("type", [])
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if kind == "null" and value is None:
            break
        if kind != "null" and isinstance(value, KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool)):
            break
    else:
        if kinds:
            return False
    several = [sum(fits(value, one, root) for one in schema.get(word, ())) for word in ("anyOf", "oneOf")]
    if ("anyOf" in schema and not several[0]) or ("oneOf" in schema and several[1] != 1):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        return False
    if isinstance(value, (str, list)) and len(value) < schema.get("minLength", schema.get("minItems", 0)):
        return False
    if isinstance(value, list):
        return all(fits(one, schema.get("items", {}), root) for one in value)
    if not isinstance(value, dict):
        return True
    known, rest = schema.get("properties", {}), schema.get("additionalProperties", {})
    return (
        len(value) >= schema.get("minProperties", 0)
        and all(name in value for name in schema.get("required", ()))
        and all(fits(name, schema.get("propertyNames", {}), root) for name in value)
        and all(
            (known.get(name, rest) is not False) and fits(one, known.get(name, rest), root)
            for name, one in value.items()
        )
    )


def test_the_schema_takes_what_the_reader_takes():
    schema = json_schema()
    good = {"name": "x", "on": "push", "inputs": {"a": 1, "b": {"required": True}}, "timeout": "2h", "jobs": {
        "a": {"run": "x", "needs": [], "matrix": {"p": [1], "include": [{"p": 2}]}, "backoff": {"base": 1}},
        "b": {"steps": [{"run": "y", "env": {"A": 1}}], "needs": "a", "if": True, "labels": "gpu"},
    }}  # fmt: skip
    assert fits(good, schema, schema)
    assert fits(as_json(read(good)), schema, schema)
    bad = [{"jobs": {}}, {"jobs": {"a": {}}}, {"jobs": {"a": {"run": "x", "steps": [{"run": "y"}]}}}, {"jbos": {}}, []]
    bad += [{"jobs": {"a": {"run": "x", "timeout": "5y"}}}, {"jobs": {"a b": {"run": "x"}}}]
    for one in bad:
        assert not fits(one, schema, schema), one
        assert inspect(json.dumps(one), name="x")[1], one
