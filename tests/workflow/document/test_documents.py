"""Parts of workflow documents: matrix, inputs, planned runs, versions and the JSON schema."""

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
from backstay.workflow.planning.inputs import validate_inputs
from backstay.workflow.planning.internal_jobs import map_keys
from backstay.workflow.planning.matrix import count_combinations, expand, format_values
from backstay.workflow.planning.plan import plan_run
from backstay.workflow.run import unpack_doc


@pytest.fixture
def stay():
    with Backstay("memory://") as stay:
        yield stay


def build_run(stay, text, inputs=None):
    run = plan_run(stay._core, read(text, name="x"), inputs or {}, version=3)
    doc = unpack_doc(run.doc)
    return run, {job.key: job for job in doc.jobs}, {job.id: job for job in run.jobs}


# ── matrix ──


def test_a_matrix_expands_to_all_combinations():
    matrix = Matrix(axes={"a": (1, 2), "b": ("x", "y")})
    assert expand(matrix) == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"}]
    assert count_combinations(matrix) == 4
    assert [format_values(one) for one in expand(matrix)] == ["1, x", "1, y", "2, x", "2, y"]


def test_exclude_removes_and_include_adds_combinations():
    matrix = Matrix(
        axes={"a": (1, 2), "b": ("x", "y")},
        exclude=({"a": 1, "b": "y"},),
        include=({"a": 2, "more": True}, {"a": 3, "b": "z"}),
    )
    assert expand(matrix) == [
        {"a": 1, "b": "x"},
        {"a": 2, "b": "x", "more": True},
        {"a": 2, "b": "y", "more": True},
        {"a": 3, "b": "z"},
    ]


def test_a_matrix_may_consist_of_includes_only():
    assert expand(Matrix(include=({"a": 1}, {"b": 2}))) == [{"a": 1}, {"b": 2}]


def test_a_matrix_distinguishes_one_from_true():
    assert expand(Matrix(axes={"a": (1, True)}, exclude=({"a": True},))) == [{"a": 1}]


def test_map_keys_are_distinct():
    assert map_keys("t", ["3.11", 3]) == ["t (3.11)", "t (3)"]
    assert map_keys("t", ["a", "a"]) == ["t (0)", "t (1)"]
    assert map_keys("t", [{"a": 1}]) == ["t (0)"]
    assert map_keys("t", ["x" * 100, "\x1b"]) == ["t (0)", "t (1)"]


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


def test_inputs_have_defaults_and_are_converted_to_their_type():
    assert validate_inputs(WORKFLOW, {"version": "1"}) == {"version": "1", "count": 1, "dry": None, "where": "a"}
    assert validate_inputs(WORKFLOW, {"version": 1.5, "count": "2", "dry": "true"})["dry"] is True


def test_every_wrong_input_is_named():
    with pytest.raises(BadInput) as caught:
        validate_inputs(WORKFLOW, {"count": "many", "dry": 1, "where": "c", "verison": 1})
    for words in (
        "'version' is missing",
        "must be a number",
        "true or false",
        "must be one of",
        "did you mean 'version'?",
    ):
        assert words in str(caught.value)
    with pytest.raises(BadInput, match="got list"):
        validate_inputs(WORKFLOW, {"version": [1]})


# ── planned runs ──


def test_a_job_becomes_a_command(stay):
    run, doc, _ = build_run(
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


def test_status_conditions_are_evaluated_by_the_store(stay):
    text = "jobs: {a: {run: x}, b: {run: x, needs: a, if: always()}, c: {run: x, needs: a, if: '${{ failure() }}'}}"
    _, doc, jobs = build_run(stay, text)
    assert [jobs[doc[key].id].when for key in "abc"] == ["all_success", "all_done", "any_failure"]
    assert {job.type for job in jobs.values()} == {COMMAND}
    assert jobs[doc["b"].id].after == (doc["a"].id,)


def test_conditions_and_texts_that_use_needs_become_decision_jobs(stay):
    text = """
jobs:
  a: {run: x}
  b: {run: x, needs: a, if: "needs.a.outputs.y == '1'", labels: [gpu]}
  c: {run: "echo ${{ needs.a.outputs.y }}", needs: a}
  d: {run: x, needs: a, if: "always() && needs.a.result == 'failure'"}
  e: {run: x, if: "failure()"}
"""
    _, doc, jobs = build_run(stay, text)
    decided = {key: jobs[doc[key].id] for key in "bcde"}
    assert {job.type for job in decided.values()} == {DECIDE}
    assert {(job.queue, job.labels, job.priority) for job in decided.values()} == {(INTERNAL, (), LARGEST_PRIORITY)}
    assert [job.when for job in decided.values()] == ["all_success", "all_success", "all_done", "all_done"]
    assert doc["b"].labels == ("gpu",)


def test_a_need_on_a_matrix_waits_for_all_its_jobs(stay):
    text = (
        "jobs: {z: {run: x, needs: t}, t: {name: T, run: 'x ${{ matrix.p }}', matrix: {p: [1, 2]}},"
        " u: {run: x, name: 'U${{ matrix.q }}', matrix: {q: [7]}, needs: [t]}}"
    )
    run, doc, jobs = build_run(stay, text)
    assert list(doc) == ["z", "t (1)", "t (2)", "u (7)"]
    assert [job.name for job in doc.values()] == ["z", "T (1)", "T (2)", "U7"]
    assert set(jobs[doc["z"].id].after) == {doc["t (1)"].id, doc["t (2)"].id}
    assert doc["z"].needs == ("t (1)", "t (2)")
    order = [job.id for job in run.jobs]
    assert order.index(doc["z"].id) > order.index(doc["t (2)"].id), "blockers come first"


def test_an_input_is_never_read_as_an_expression(stay):
    hostile = "${{ inputs.other }} ${{ broken"
    text = "inputs: {a: '', other: s3cret}\njobs: {b: {run: 'echo ${{ inputs.a }}', env: {E: '${{ inputs.a }}'}}}"
    run, _, _ = build_run(stay, text, {"a": hostile})
    spec = command_spec.decode(run.jobs[0].args)
    assert spec.steps[0].run == f"echo {hostile}"
    assert spec.env["E"] == hostile


# ── stored workflows ──


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
    for name, version in (("unknown", 0), ("ci", 7)):
        with pytest.raises(WorkflowNotFound):
            stay.workflows.get(name, version)
        with pytest.raises(WorkflowNotFound):
            stay.workflows.start(name, version=version)


def test_a_workflow_takes_its_name_from_its_file(stay, tmp_path):
    path = tmp_path / "nightly.yml"
    path.write_text("jobs: {a: {run: x}}")
    assert stay.workflows.put(path).name == "nightly"


def test_a_python_workflow_is_started_only_by_a_program_that_defines_it(stay):
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
    with Backstay(engine=stay.engine) as other_app, pytest.raises(WorkflowError, match="defined in Python"):
        other_app.workflows.start("here")


# ── the schema ──


def test_the_schema_covers_every_key():
    schema = json_schema()
    json.dumps(schema)
    assert set(schema["properties"]) == {field.name for field in TABLES["workflow"]}
    assert set(schema["$defs"]["job"]["properties"]) == {field.name for field in TABLES["job"]}
    for name, fields in TABLES.items():
        table = reference_table(name)
        for field in fields:
            assert f"| `{field.name}` |" in table


KINDS = {"string": str, "number": (int, float), "integer": int, "boolean": bool, "object": dict, "array": list}


def matches_schema(value, schema, root):
    """Whether a value matches a schema; supports the keywords that our schema uses."""
    if "$ref" in schema:
        return matches_schema(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    kinds = schema.get("type", [])
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if kind == "null" and value is None:
            break
        if kind != "null" and isinstance(value, KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool)):
            break
    else:
        if kinds:
            return False
    several = [sum(matches_schema(value, one, root) for one in schema.get(word, ())) for word in ("anyOf", "oneOf")]
    if ("anyOf" in schema and not several[0]) or ("oneOf" in schema and several[1] != 1):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        return False
    if isinstance(value, (str, list)) and len(value) < schema.get("minLength", schema.get("minItems", 0)):
        return False
    if isinstance(value, list):
        return all(matches_schema(one, schema.get("items", {}), root) for one in value)
    if not isinstance(value, dict):
        return True
    known, rest = schema.get("properties", {}), schema.get("additionalProperties", {})
    return (
        len(value) >= schema.get("minProperties", 0)
        and all(name in value for name in schema.get("required", ()))
        and all(matches_schema(name, schema.get("propertyNames", {}), root) for name in value)
        and all(
            (known.get(name, rest) is not False) and matches_schema(one, known.get(name, rest), root)
            for name, one in value.items()
        )
    )


def test_the_schema_accepts_what_the_reader_accepts():
    schema = json_schema()
    good = {"name": "x", "on": "push", "inputs": {"a": 1, "b": {"required": True}}, "timeout": "2h", "jobs": {
        "a": {"run": "x", "needs": [], "matrix": {"p": [1], "include": [{"p": 2}]}, "backoff": {"base": 1}},
        "b": {"steps": [{"run": "y", "env": {"A": 1}}], "needs": "a", "if": True, "labels": "gpu"},
    }}  # fmt: skip
    assert matches_schema(good, schema, schema)
    assert matches_schema(as_json(read(good)), schema, schema)
    bad = [{"jobs": {}}, {"jobs": {"a": {}}}, {"jobs": {"a": {"run": "x", "steps": [{"run": "y"}]}}}, {"jbos": {}}, []]
    bad += [{"jobs": {"a": {"run": "x", "timeout": "5y"}}}, {"jobs": {"a b": {"run": "x"}}}]
    for one in bad:
        assert not matches_schema(one, schema, schema), one
        assert inspect(json.dumps(one), name="x")[1], one
