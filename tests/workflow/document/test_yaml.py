"""Reading of YAML workflow documents: every key, and every problem with its line and column."""

import json
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backstay import BadDefinition, ConfigError, Problem
from backstay.job.api.retry import Backoff
from backstay.workflow.command.spec import Step
from backstay.workflow.definition import Input, JobSpec, Matrix, as_json, digest, pack, unpack
from backstay.workflow.document.nodes import DEEPEST, LARGEST, MOST_NODES
from backstay.workflow.document.yaml import MOST_PROBLEMS, inspect, read

FULL = """
name: ci
on: [push, manual]
inputs:
  version: {required: true, type: string, description: What to build}
  dry: false
  where: {default: staging, options: [staging, production]}
env: {A: 1.10, YES: yes, B: "${{ inputs.version }}"}
timeout: 2h
jobs:
  build:
    run: |
      make
      echo "v=${{ inputs.version }}" >> $BACKSTAY_OUTPUT
    outputs: {image: "app:${{ outputs.v }}"}
  test:
    name: Tests
    needs: build
    matrix:
      python: [3.10, "3.12"]
      os: [linux]
      include: [{python: "3.12", os: linux, extra: true}]
      exclude: [{python: "3.12", os: windows}]
    labels: [linux, "py${{ matrix.python }}"]
    steps:
      - name: Run ${{ matrix.os }}
        run: pytest ${{ needs.build.outputs.v }}
        env: {P: "${{ matrix.python }}"}
        working-directory: tests
        shell: bash
        timeout: 30s
      - {run: echo $P, if: "outputs.x == 'y'", continue-on-error: true}
    retries: 2
    backoff: {base: 1, max: 60, factor: 3, jitter: false}
    timeout: 600
    working-directory: src
  deploy:
    needs: [test, build]
    if: success() && inputs.dry == false
    run: ./deploy
    continue-on-error: true
    priority: 3
    backoff: 5
    env: {TO: "${{ inputs.where }}"}
"""


def problems(text):
    workflow, found = inspect(text)
    assert workflow is None
    assert found
    return [str(one) for one in found]


def one_problem(text):
    (found,) = problems(text)
    return found


def test_a_document_with_every_key_is_read():
    workflow = read(FULL)
    assert workflow.name == "ci"
    assert workflow.on == ("push", "manual")
    assert workflow.timeout == 7200
    assert workflow.env == {"A": "1.10", "YES": "yes", "B": "${{ inputs.version }}"}
    assert workflow.inputs["version"] == Input(required=True, type="string", description="What to build")
    assert workflow.inputs["dry"].default is False
    assert list(workflow.jobs) == ["build", "test", "deploy"]
    test, deploy = workflow.jobs["test"], workflow.jobs["deploy"]
    assert test.matrix == Matrix(
        axes={"python": ("3.10", "3.12"), "os": ("linux",)},
        include=({"python": "3.12", "os": "linux", "extra": True},),
        exclude=({"python": "3.12", "os": "windows"},),
    )
    assert test.backoff == Backoff(1.0, 3.0, 60.0, jitter=False)
    assert test.steps[1] == Step(run="echo $P", condition="outputs.x == 'y'", continue_on_error=True)
    assert test.steps[0].timeout == 30
    assert deploy == JobSpec(
        needs=("test", "build"),
        condition="success() && inputs.dry == false",
        steps=(Step(run="./deploy"),),
        soft=True,
        priority=3,
        backoff=Backoff(5.0),
        env={"TO": "${{ inputs.where }}"},
    )


def test_a_workflow_survives_a_json_round_trip():
    workflow = read(FULL)
    assert unpack(pack(workflow)) == workflow
    assert read(as_json(workflow)) == workflow
    assert read(json.dumps(as_json(workflow), indent="\t")) == workflow
    assert digest(pack(workflow)) == digest(pack(read(FULL)))
    assert digest(pack(workflow)) != digest(pack(read(FULL.replace("make", "make all"))))


def test_the_key_on_stays_text():
    for text in ("on: push", "'on': push", "on: {push: {branches: [main]}, pull: }", "on: [push, pull]"):
        assert "push" in read(f"name: x\n{text}\njobs: {{a: {{run: b}}}}").on


def test_json_is_yaml():
    text = '{"name": "x", "jobs": {"a": {"run": "echo \\ud83d\\ude00 \\u00e4"}}}'
    assert read(text).jobs["a"].steps[0].run == "echo 😀 ä"
    assert read(text.encode()).name == "x"
    assert "3:5" in one_problem('{\n"name": "x", "jobs": {"a": {"run": "b"\n,   "rnu": 1}}}')


def test_yaml_aliases_are_resolved():
    text = "name: x\nenv: &e {A: 1}\njobs:\n  a: {run: b, env: *e}\n  c: {run: b, env: *e}"
    assert read(text).jobs["c"].env == {"A": "1"}


def test_the_name_can_be_given_by_the_caller():
    assert read("jobs: {a: {run: b}}", name="nightly").name == "nightly"
    assert "lacks 'name'" in one_problem("jobs: {a: {run: b}}")


def test_all_problems_are_reported_at_once():
    text = """name: ci
nmae: x
jobs:
  a:
    needs: [c, zz, a]
    rum: make
  a:
    run: x
  b b: {run: x}
  c:
    needs: a
    run: echo ${{ needs.q.outputs.x }}
    steps: []
    if: failure(
    retries: many
    timeout: -1
    env: [x]
    labels: {a: b}
    matrix: {}
    priority: 3000
  d: !!python/object:os.system {run: x}
  e: {run: x, if: "a = b", needs: c}
  f:
    run: |
      first line
        second ${{ inputs.nope }} line
"""
    found = problems(text)
    assert found == [
        "2:1: 'nmae' is not a key of a workflow; did you mean 'name'?",
        "4:3: job 'a' has no command; give it run: or steps:",
        "4:3: these jobs form a cycle: a → c → a",
        "5:16: job 'a' needs 'zz', which does not exist",
        "5:20: job 'a' needs itself",
        "6:5: 'rum' is not a key of job 'a'; did you mean 'run'?",
        "7:3: key 'a' is defined twice; the first is in line 4",
        (
            "9:3: 'b b' is not a valid name in jobs:"
            " use letters, digits, _ and -, begin with a letter or _, at most 100 characters"
        ),
        "10:3: job 'c' has both run and steps; move the command into a step",
        "12:19: job 'c': needs.q does not exist; add it to needs",
        "14:17: if of job 'c': failure() takes no arguments",
        "15:14: retries of job 'c' must be a whole number from 0 to 1000000; got text 'many'",
        "16:14: timeout of job 'c' must be a number of seconds, or a time like 90s, 10m or 2h; got the number '-1'",
        "17:10: env of job 'c' must be a mapping of variables; got a list",
        "18:13: labels of job 'c' must be a list; got a mapping",
        "19:13: matrix of job 'c' makes no jobs",
        "20:15: priority of job 'c' must be a whole number from -100 to 100; got the number '3000'",
        "21:6: tag 'tag:yaml.org,2002:python/object:os.system' is not allowed; write the value without a tag",
        "22:22: if of job 'e': unexpected '='; compare with ==",
        "26:20: job 'f': inputs.nope does not exist; declare it under inputs",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("# nothing\n", "empty"),
        ("[]", "a workflow must be a mapping"),
        ("just text", "a workflow must be a mapping"),
        ("name: x", "lacks 'jobs'"),
        ("name: x\njobs: {}", "no jobs"),
        ("name: x\njobs: []", "jobs must be a mapping"),
        ("name: x\njobs: {a: }", "job 'a' must be a mapping"),
        ("name: x\njobs: {a: {run: }}", "run of job 'a' must be text; got nothing"),
        ("name: x\njobs: {a: {run: ''}}", "run of job 'a' is empty"),
        ("name: x\njobs: {a: {run: true}}", "run of job 'a' must be text; got a boolean"),
        ("name: x\njobs: {a: {run: [b]}}", "run of job 'a' must be text; got a list"),
        ("name: x\njobs: {a: {steps: b}}", "steps of job 'a' must be a list of steps"),
        ("name: x\njobs: {a: {steps: [b]}}", "step 1 of job 'a' must be a mapping"),
        ("name: x\njobs: {a: {steps: [{name: b}]}}", "step 1 of job 'a' lacks 'run'"),
        ("name: x\njobs: {a: {run: b, needs: [[c]]}}", "needs of job 'a' must be text"),
        ("name: x\njobs: {a: {run: b}, c: {run: d, needs: [a, a]}}", "needs 'a' twice"),
        ("name: x\njobs: {build: {run: b}, c: {run: d, needs: biuld}}", "did you mean 'build'?"),
        ("name: x\njobs: {a: {run: b, timeout: 5y}}", "a time like"),
        ("name: x\njobs: {a: {run: b, continue-on-error: maybe}}", "true or false"),
        ("name: x\njobs: {a: {run: b, matrix: {p: 3}}}", "p in matrix of job 'a' must be a list"),
        ("name: x\njobs: {a: {run: b, matrix: {p: [1, 1]}}}", "the same values"),
        ("name: x\njobs: {a: {run: b, matrix: {p: [1], exclude: [{q: 1}]}}}", "names 'q'"),
        ("name: x\njobs: {a: {run: b, matrix: {p: [1], exclude: [{p: 1}]}}}", "makes no jobs"),
        ("name: x\njobs: {a: {run: b, name: '${{ env.X }}'}}", "only inputs, matrix"),
        ("name: x\njobs: {a: {run: b, labels: ['${{ needs.z.result }}']}}", "only inputs, matrix"),
        ("name: x\njobs: {a: {run: 'b ${{ outputs.x }}'}}", "only needs, inputs, env, matrix"),
        ("name: x\njobs: {a: {run: 'b ${{ env.HOME }}'}}", "$NAME"),
        ("name: x\njobs: {a: {run: 'b ${{ matrix.x }}'}}", "no such list"),
        ("name: x\njobs: {a: {run: 'b ${{ needs.c.result }}'}, c: {run: d}}", "add it to needs"),
        ("name: x\nenv: {A: '${{ needs.c.result }}'}\njobs: {a: {run: b}}", "only inputs, env"),
        ("name: x\nenv: {'1A': b}\njobs: {a: {run: b}}", "not a valid variable name"),
        ("name: x\ninputs: {a: {type: date}}\njobs: {a: {run: b}}", "string, number or boolean"),
        ("name: x\njobs: {a: {run: b, backoff: {max: 3}}}", "lacks 'base'"),
        ("name: x\njobs: {a: {run: b, backoff: {base: 9, max: 3}}}", "below its base"),
        ("name: x\njobs: {a: {run: b, labels: ['a,b']}}", "comma"),
        ("name: x\n---\nname: y", "second document"),
        ("name: x\njobs: {a: {<<: {run: b}}}", "(merge) is not supported"),
        ("name: x\n? [a]\n: b\njobs: {a: {run: b}}", "a key must be text"),
        ("name: *unknown\njobs: {a: {run: b}}", "no anchor 'unknown'"),
        ("name: &a [*a]\njobs: {a: {run: b}}", "no anchor 'a'"),
        ("name: x\njobs:\n\ta: {run: b}", "invalid YAML"),
        ('name: "\\ud83d"\njobs: {a: {run: b}}', "lone surrogate"),
        ('{"name": "x\\u0000", "jobs": {"a": {"run": "b\\u0000"}}}', "NUL"),
        ("name: [", "invalid YAML"),
        ("a: \x01", "invalid YAML"),
    ],
)
def test_a_problem_is_reported_with_its_position(text, problem):
    assert problem in "\n".join(problems(text))


def test_a_dependency_cycle_is_named_in_full():
    text = "name: x\njobs: {a: {run: x, needs: b}, b: {run: x, needs: c}, c: {run: x, needs: a}, d: {run: x, needs: a}}"
    assert "form a cycle" in one_problem(text)
    assert one_problem(text).count("→") == 3


def test_every_dependency_cycle_is_named():
    text = "name: x\njobs: {a: {run: x, needs: b}, b: {run: x, needs: a}, c: {run: x, needs: d}, d: {run: x, needs: c}}"
    assert [problem.count("→") for problem in problems(text)] == [2, 2]


@pytest.mark.parametrize("name", ['"-"', ".", "..", '"a\\nb"', '"\\e[31m"'])
def test_a_name_that_cannot_stand_in_a_path_is_refused(name):
    assert "name must be one printable line" in one_problem(f"name: {name}\njobs: {{a: {{run: x}}}}")


def test_alias_bombs_and_deep_nesting_are_refused():
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))
    began = time.monotonic()
    assert f"more than {MOST_NODES}" in problems(bomb)[-1]
    assert f"{DEEPEST} levels" in problems("a: " + "[" * 1000)[-1]
    deep = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 100))
    assert f"{DEEPEST} levels" in problems(deep)[-1]
    assert time.monotonic() - began < 30


def test_a_document_that_is_too_large_is_refused_before_parsing():
    began = time.monotonic()
    assert f"at most {LARGEST}" in one_problem("x" * 10_000_000)
    assert f"at most {LARGEST}" in one_problem(b"x" * 10_000_000)
    assert time.monotonic() - began < 30


def test_bytes_that_are_not_utf_8_are_refused_with_their_position():
    assert one_problem("name: ä\nb: ".encode() + b"\xff") == "2:4: byte 0xff is not UTF-8; save the file as UTF-8"
    assert "UTF-8" in one_problem("name: x".encode("utf-16"))
    assert read(b"\xef\xbb\xbfname: x\njobs: {a: {run: b}}").name == "x"


def test_a_long_list_of_problems_is_truncated():
    text = "name: x\njobs:\n" + "".join(f"  j{n}: {{rnu: x}}\n" for n in range(MOST_PROBLEMS))
    found = problems(text)
    assert len(found) == MOST_PROBLEMS + 1
    assert found[-1] == f"and {MOST_PROBLEMS} more"


def test_the_error_lists_all_problems():
    with pytest.raises(BadDefinition) as caught:
        read("name: x\njobs: {a: {rnu: b}}", source="ci.yml")
    assert caught.value.problems[1] == Problem("'rnu' is not a key of job 'a'; did you mean 'run'?", 2, 12)
    assert "ci.yml:2:12: 'rnu' is not a key" in str(caught.value)
    with pytest.raises(ConfigError):
        read({"name": object()})


FRAGMENTS = st.sampled_from(
    [
        *("name", "jobs", "on", "env", "run", "steps", "needs", "matrix", "if", "a", "b", "3.10", "true", "null"),
        *":-,[]{}|>'\"&*!#?%@`~",
        *("${{", "}}", "success()", "needs.a.result", "*a", "&a", "!!str", "<<", "---", "...", "\n", "\n\n", "\t"),
    ]
)


@given(st.lists(st.one_of(FRAGMENTS, st.sampled_from(["\n", "\n  ", "\n    ", ": ", " "])), max_size=40))
@settings(max_examples=400, deadline=None)
def test_any_fragments_give_a_workflow_or_problems(parts):
    workflow, found = inspect("".join(parts), name="x")
    assert (workflow is None) == bool(found)


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200)))
@example("a: !<tag:yaml.org,2002:int> x")
@example("%YAML 3.9\n---\na")
@example('"\\U00110000"')
@example("a: 1e999999999")
@example("? ? ? a")
@settings(max_examples=300, deadline=None)
def test_any_text_gives_a_workflow_or_problems(raw):
    workflow, found = inspect(raw, name="x")
    assert (workflow is None) == bool(found)
    assert all(isinstance(one, Problem) and one.message for one in found)


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=10), st.just("${{ inputs.x }}")),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)
KEYS = [
    "name", "needs", "run", "steps", "env", "labels", "retries", "backoff", "timeout", "if", "priority",
    "continue-on-error", "matrix", "outputs", "working-directory", "shell", "metadata", "ports",
]  # fmt: skip


@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5), VALUES, VALUES)
@settings(max_examples=300, deadline=None)
def test_any_values_give_a_workflow_or_problems(job, inputs, env):
    raw = json.dumps({"name": "x", "inputs": inputs, "env": env, "jobs": {"a": job}})
    workflow, found = inspect(raw)
    assert (workflow is None) == bool(found)
    if workflow is not None:
        assert read(as_json(workflow)) == workflow


@pytest.mark.parametrize(
    ("spec", "column", "message"),
    [
        ("{type: number, default: abc}", 32, "default of input 'n' must be a number; got 'abc'"),
        ("{type: boolean, default: 1}", 33, "default of input 'n' must be true or false; got 1"),
        ("{options: [a, b], default: c}", 35, "default of input 'n' must be one of 'a', 'b'; got 'c'"),
        ("{type: boolean, options: [maybe]}", 34, "an option of input 'n' must be true or false; got 'maybe'"),
    ],
)
def test_a_default_or_option_that_violates_its_input_is_refused(spec, column, message):
    found = inspect(f"name: a\ninputs:\n    n: {spec}\njobs: {{a: {{run: x}}}}\n")[1]
    assert found == [Problem(message, 3, column)]


def test_defaults_and_options_are_converted_to_the_type_of_their_input():
    text = "name: a\ninputs: {n: {type: number, default: '3', options: ['3', 4]}}\njobs: {a: {run: x}}\n"
    assert read(text).inputs["n"] == Input(type="number", default=3, options=(3, 4))


def test_an_empty_list_is_reported_as_an_empty_list():
    found = inspect("name: a\njobs: {a: {steps: []}}\n")[1]
    assert "got an empty list" in found[0].message


def test_each_bad_expression_of_a_text_has_its_own_position():
    text = "name: two\njobs:\n  a:\n    run: echo ${{ 1 + }} ${{ inputs.x }} ${{ unknown( }} ${{ open\n"
    _, found = inspect(text)
    places = [(problem.line, problem.column) for problem in found]
    assert len(places) == 4, found  # three syntax errors and one undefined input
    assert {line for line, _ in places} == {4}
    assert len({column for _, column in places}) == 4
