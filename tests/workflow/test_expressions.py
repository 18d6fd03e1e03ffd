"""The language of conditions: what it says, and what it says about what it does not understand."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backstay import BadExpression
from backstay.workflow.expressions.expression import Context, Need, as_text, parse
from backstay.workflow.expressions.interpolation import fill, fill_all, template
from backstay.workflow.expressions.parser import DEEPEST, LONGEST
from backstay.workflow.planning.condition import Condition, condition

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
    return parse(text).value(context)


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
        ("needs.nobody.outputs.x", None),
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
def test_what_an_expression_comes_to(text, answer):
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
        ("'open", 0, "no end"),
        ("(true", 0, "close it"),
        ("true)", 4, "not expected"),
        ("true false", 5, "join"),
        ("1 == 2 == 3", 7, "join comparisons"),
        ("success", 0, "write success()"),
        ("success(1)", 8, "takes nothing"),
        ("contains('a')", 0, "no function contains"),
        ("github.ref", 0, "not known"),
        ("build.outputs.x", 0, "not known"),
        ("needs.build", 0, "needs.<job>.result"),
        ("needs.build.outputs", 0, "needs.<job>.result"),
        ("inputs.a.b", 0, "inputs.<name>"),
        ("inputs.", 7, "behind the dot"),
        ("1 < 2", 2, "== and != only"),
        ("true &&", 7, "missing"),
        ("!" * 60 + "true", DEEPEST, "deep"),
        ("(" * 5000, 0, "at most"),
        ("${{ x }} and ${{ y }}", 0, "no ${{ }}"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text, at, words):
    with pytest.raises(
        BadExpression, match=words.replace("(", r"\(").replace(")", r"\)").replace("$", r"\$")
    ) as caught:
        parse(text)
    assert caught.value.position == at


@given(st.text(max_size=60))
@example("a" * (LONGEST + 1))
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_or_refused(text):
    place = 0
    try:
        parse(text).value(CONTEXT)
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
def test_any_words_are_read_or_refused(words):
    text = " ".join(words)
    try:
        expression = parse(text)
    except BadExpression:
        return
    assert parse(text) == expression
    expression.value(CONTEXT)


def test_a_condition_without_a_status_function_means_success_as_well():
    fine = Context(needs={"a": Need("success")}, inputs={"x": True})
    assert parse("inputs.x").holds(fine)
    assert not parse("inputs.x").holds(CONTEXT)
    assert parse("inputs.deploy && failure()").holds(CONTEXT)
    assert not parse("failure()").holds(fine)
    assert parse("failure()").holds(Context(needs={"a": Need("skipped")}, failed=True))
    assert parse("cancelled()").holds(Context(needs={"a": Need("cancelled")}))


def test_plain_conditions_are_the_stores():
    assert condition("") == Condition("all_success", "")
    assert condition("success()") == Condition("all_success", "")
    assert condition("${{ always() }}") == Condition("all_done", "")
    assert condition("failure()") == Condition("any_failure", "")
    assert condition("failure()", needs=False) == Condition("all_done", "failure()")
    assert condition("inputs.x") == Condition("all_success", "inputs.x")
    assert condition("always() && inputs.x") == Condition("all_done", "always() && inputs.x")


def test_texts_are_filled_in():
    assert fill("v${{ inputs.n }} on ${{matrix.os}}!", CONTEXT) == "v3 on linux!"
    assert fill("no expression at all, $HOME and ${VAR}", CONTEXT) == "no expression at all, $HOME and ${VAR}"
    assert fill("${{ '}}' }}${{ inputs.none }}", CONTEXT) == "}}"
    assert fill_all({"A": "${{ inputs.n }}", "B": "${{ env.A }}${{ env.LEVEL }}"}, CONTEXT) == {"A": "3", "B": "3debug"}
    assert [as_text(one) for one in (True, None, 3.0, 0.5, [1, "a"], {"a": None})] == [
        "true", "", "3", "0.5", '[1, "a"]', '{"a": null}',
    ]  # fmt: skip


def test_what_was_filled_in_is_not_read_again():
    sly = Context(inputs={"x": "${{ inputs.secret }}", "secret": "s3cret"})
    assert fill("echo ${{ inputs.x }}", sly) == "echo ${{ inputs.secret }}"


@pytest.mark.parametrize(("text", "at"), [("ab ${{ inputs.x", 3), ("ab ${{ inputs.x == }} c", 19), ("${{ 'x }}", 0)])
def test_a_text_that_cannot_be_read_says_where(text, at):
    with pytest.raises(BadExpression) as caught:
        template(text)
    assert caught.value.position == at
