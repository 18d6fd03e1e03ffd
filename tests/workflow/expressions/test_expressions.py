"""The expression language of conditions and templates: evaluation, errors with positions, and interpolation."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backstay import BadExpression
from backstay.workflow.expressions.expression import Context, Need, as_text, parse
from backstay.workflow.expressions.interpolation import interpolate, interpolate_env, parse_template
from backstay.workflow.expressions.parser import DEEPEST, LONGEST
from backstay.workflow.planning.condition import Condition, compile_condition

CONTEXT = Context(
    needs={
        "build": Need("success", {"path": "a.whl", "changed": "yes", "count": "3", "empty": "", "flag": "false"}),
        "lint-all": Need("failure"),
    },
    inputs={"deploy": True, "n": 3, "name": "it's", "none": None},
    env={"LEVEL": "debug"},
    matrix={"python": "3.11", "os": "linux"},
)


def value(text, context=CONTEXT):
    return parse(text).evaluate(context)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("true", True),
        ("null", None),
        ("'it''s'", "it's"),
        ('"say ""so"""', 'say "so"'),
        ("-1.5", -1.5),
        ("1e3", 1000.0),
        ("needs.build.outputs.path", "a.whl"),
        ("needs.lint-all.result", "failure"),
        ("needs.unknown.outputs.x", None),
        ("inputs.name == 'it''s'", True),
        ("needs.build.outputs.count == 3", True),
        ("3 == needs.build.outputs.count", True),
        ("needs.build.outputs.path == 3", False),
        ("inputs.deploy == 'true'", True),
        ("inputs.deploy == true", True),
        ("inputs.deploy == 1", False),
        ("inputs.none == ''", True),
        ("needs.build.outputs.flag", "false"),
        ("!needs.build.outputs.empty", True),
        ("matrix.python == '3.11' && matrix.os != 'windows'", True),
        ("inputs.none || env.LEVEL || 'x'", "debug"),
        ("inputs.deploy && 'yes' || 'no'", "yes"),
        ("!(true && false) || false", True),
        ("true || false && false", True),
        ("(true || false) && false", False),
        ("failure()", True),
        ("success()", False),
        ("always() && !cancelled()", True),
        ("${{ inputs.n }}", 3),
    ],
)
def test_an_expression_evaluates_to_its_value(text, answer):
    found = value(text)
    assert found == answer
    assert type(found) is type(answer)


@pytest.mark.parametrize(
    ("text", "at", "words"),
    [
        ("", 0, "empty"),
        ("   ", 3, "empty"),
        ("a = b", 2, "compare with =="),
        ("inputs.a & inputs.b", 9, "write &&"),
        ("'open", 0, "closing quote"),
        ("(true", 0, "close it"),
        ("true)", 4, "unexpected"),
        ("true false", 5, "join"),
        ("1 == 2 == 3", 7, "join them with &&"),
        ("success", 0, "write success()"),
        ("success(1)", 8, "takes no arguments"),
        ("contains('a')", 0, "unknown function contains"),
        ("github.ref", 0, "unknown name"),
        ("build.outputs.x", 0, "unknown name"),
        ("needs.build", 0, "needs.<job>.result"),
        ("needs.build.outputs", 0, "needs.<job>.result"),
        ("inputs.a.b", 0, "inputs.<name>"),
        ("inputs.", 7, "after the dot"),
        ("1 < 2", 2, "comparisons are == and !="),
        ("true &&", 7, "missing"),
        ("!" * 60 + "true", DEEPEST, "deep"),
        ("(" * 5000, 0, "at most"),
        ("${{ x }} and ${{ y }}", 0, "no ${{ }}"),
    ],
)
def test_a_bad_expression_is_refused_with_its_position(text, at, words):
    with pytest.raises(
        BadExpression, match=words.replace("(", r"\(").replace(")", r"\)").replace("$", r"\$")
    ) as caught:
        parse(text)
    assert caught.value.position == at


@given(st.text(max_size=60))
@example("a" * (LONGEST + 1))
@settings(max_examples=300, deadline=None)
def test_any_text_is_parsed_or_refused(text):
    place = 0
    try:
        parse(text).evaluate(CONTEXT)
    except BadExpression as error:
        place = error.position
    assert 0 <= place <= len(text)


WORDS = st.sampled_from(
    [
        "true",
        "'a'",
        "1",
        "(",
        ")",
        "!",
        "&&",
        "||",
        "==",
        "!=",
        ".",
        "needs",
        "build",
        "result",
        "success()",
        "inputs.n",
    ]
)


@given(st.lists(WORDS, max_size=25))
@settings(max_examples=300, deadline=None)
def test_any_tokens_are_parsed_or_refused(words):
    text = " ".join(words)
    try:
        expression = parse(text)
    except BadExpression:
        return
    assert parse(text) == expression
    expression.evaluate(CONTEXT)


def test_a_condition_without_a_status_function_also_requires_success():
    fine = Context(needs={"a": Need("success")}, inputs={"x": True})
    assert parse("inputs.x").holds(fine)
    assert not parse("inputs.x").holds(CONTEXT)
    assert parse("inputs.deploy && failure()").holds(CONTEXT)
    assert not parse("failure()").holds(fine)
    assert parse("failure()").holds(Context(needs={"a": Need("skipped")}, failed=True))
    assert parse("cancelled()").holds(Context(needs={"a": Need("cancelled")}))


def test_status_conditions_compile_to_conditions_of_the_store():
    assert compile_condition("") == Condition("all_success", "")
    assert compile_condition("success()") == Condition("all_success", "")
    assert compile_condition("${{ always() }}") == Condition("all_done", "")
    assert compile_condition("failure()") == Condition("any_failure", "")
    assert compile_condition("failure()", needs=False) == Condition("all_done", "failure()")
    assert compile_condition("inputs.x") == Condition("all_success", "inputs.x")
    assert compile_condition("always() && inputs.x") == Condition("all_done", "always() && inputs.x")


def test_texts_are_interpolated():
    assert interpolate("v${{ inputs.n }} on ${{matrix.os}}!", CONTEXT) == "v3 on linux!"
    assert interpolate("no expression at all, $HOME and ${VAR}", CONTEXT) == "no expression at all, $HOME and ${VAR}"
    assert interpolate("${{ '}}' }}${{ inputs.none }}", CONTEXT) == "}}"
    env = {"A": "${{ inputs.n }}", "B": "${{ env.A }}${{ env.LEVEL }}"}
    assert interpolate_env(env, CONTEXT) == {"A": "3", "B": "3debug"}
    assert [as_text(one) for one in (True, None, 3.0, 0.5, [1, "a"], {"a": None})] == [
        "true", "", "3", "0.5", '[1, "a"]', '{"a": null}',
    ]  # fmt: skip


def test_interpolated_text_is_not_evaluated_again():
    hostile = Context(inputs={"x": "${{ inputs.secret }}", "secret": "s3cret"})
    assert interpolate("echo ${{ inputs.x }}", hostile) == "echo ${{ inputs.secret }}"


@pytest.mark.parametrize(("text", "at"), [("ab ${{ inputs.x", 3), ("ab ${{ inputs.x == }} c", 19), ("${{ 'x }}", 0)])
def test_a_bad_template_is_refused_with_its_position(text, at):
    with pytest.raises(BadExpression) as caught:
        parse_template(text)
    assert caught.value.position == at
