"""Scope expressions: evaluated by n8n, taken for plain text by it, or unique to each run and so without contention."""

from __future__ import annotations

import pytest

from backstay import PatchRefused
from backstay.n8n.model import N8nNode
from backstay.n8n.patch.scope import read_scope


def trigger(kind, **parameters):
    return N8nNode({"name": "Start", "type": f"n8n-nodes-base.{kind}", "parameters": parameters})


ANYTHING = trigger("gmailTrigger")


@pytest.mark.parametrize(
    ("given", "text", "static"),
    [
        ("global", "global", "global"),
        ("=global", "global", "global"),
        ("={{ 'global' }}", "={{ 'global' }}", "global"),
        ('={{ "a" }}-{{ `b` }}-{{ 7 }}', '={{ "a" }}-{{ `b` }}-{{ 7 }}', "a-b-7"),
        ("={{ 'excel-' + $json.fileId }}", "={{ 'excel-' + $json.fileId }}", None),
        ("=user-{{ $json.id }}", "=user-{{ $json.id }}", None),
        ("={{ `a-${$json.id}` }}", "={{ `a-${$json.id}` }}", None),
    ],
)
def test_a_scope_that_n8n_evaluates_is_kept_unchanged(given, text, static):
    scope = read_scope(given, [ANYTHING])
    assert (scope.text, scope.static, scope.warnings) == (text, static, ())


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("='user-' + $json.userId", "={{ 'user-' + $json.userId }}"),
        ("$json.userId", "={{ $json.userId }}"),
        ("excel-{{ $json.fileId }}", "=excel-{{ $json.fileId }}"),
        ("='global'", "={{ 'global' }}"),
    ],
)
def test_code_that_n8n_would_read_as_text_is_wrapped_with_a_warning(given, text):
    scope = read_scope(given, [ANYTHING])
    assert scope.text == text
    (warning,) = scope.warnings
    assert "n8n would read it as plain text" in warning or "its quotes would be part of the scope" in warning


@pytest.mark.parametrize(
    "given", ["user-$json.id", "=user-$json.id", "api/v1:$json.body.user", "a.$('Start').item.json.b"]
)
def test_text_before_an_expression_is_refused_because_it_evaluates_to_nan(given):
    """In braces `user-$json.id` is a subtraction: every run would share the scope NaN."""
    before, _, read = given.removeprefix("=").partition("$")
    with pytest.raises(PatchRefused) as caught:
        read_scope(given, [trigger("webhook")])
    assert f"={before}{{{{ ${read} }}}}" in str(caught.value)
    assert read_scope(f"={before}{{{{ ${read} }}}}", [ANYTHING]).warnings == ()


@pytest.mark.parametrize("given", ["", "  ", "=", "={{ }}", "={{ '' }}", "={{ 'a' ", "= "])
def test_an_empty_or_unfinished_scope_is_refused(given):
    with pytest.raises(PatchRefused):
        read_scope(given, [ANYTHING])


@pytest.mark.parametrize("given", ["={{ $execution.id }}", "={{ $now.toMillis() }}", "=a-{{ Math.random() }}"])
def test_a_scope_unique_to_each_run_is_a_warning(given):
    (warning,) = read_scope(given, [ANYTHING]).warnings
    assert "never contend" in warning


@pytest.mark.parametrize(
    ("kind", "parameters", "given", "message"),
    [
        ("webhook", {}, "={{ $json.fileId }}", "did you mean $json.body.fileId?"),
        ("manualTrigger", {}, "={{ $json.id }}", "does not send"),
        ("scheduleTrigger", {}, "={{ $json['user'] }}", "does not send"),
        (
            "executeWorkflowTrigger",
            {"workflowInputs": {"values": [{"name": "id"}]}},
            "={{ $json.ip }}",
            "does not send",
        ),
        ("formTrigger", {"formFields": {"values": [{"fieldLabel": "Mail"}]}}, "={{ $json.mail }}", "does not send"),
    ],
)
def test_a_field_that_the_trigger_does_not_send_is_a_warning(kind, parameters, given, message):
    (warning,) = read_scope(given, [trigger(kind, **parameters)]).warnings
    assert message in warning


@pytest.mark.parametrize(
    ("kind", "parameters", "given"),
    [
        ("webhook", {}, "={{ $json.body.fileId }}"),
        ("scheduleTrigger", {}, "={{ $json['Day of week'] }}"),
        ("executeWorkflowTrigger", {"inputSource": "passthrough"}, "={{ $json.anything }}"),
        ("gmailTrigger", {}, "={{ $json.anything }}"),
        ("webhook", {}, "={{ $('Start').first().json.body.id }}"),
    ],
)
def test_a_field_that_the_trigger_may_send_is_no_warning(kind, parameters, given):
    assert read_scope(given, [trigger(kind, **parameters)]).warnings == ()


def test_a_scope_cannot_read_a_node_that_has_not_run():
    with pytest.raises(PatchRefused, match="has not run"):
        read_scope("={{ $('Fetch').first().json.id }}", [ANYTHING])


@pytest.mark.parametrize(
    "given",
    [
        "={{ 'excel-' + .body.fileId }}",
        "=user-{{ .headers['x-user'] }}",
        "={{ .id }}",
        "='user-' + .userId",
        "={{ 'a' }}-{{ String(.id) }}",
    ],
)
def test_a_scope_that_lost_its_variable_to_shell_expansion_is_refused(given):
    with pytest.raises(PatchRefused, match=r"\\\$json"):
        read_scope(given, [ANYTHING])


@pytest.mark.parametrize(
    "given",
    [
        "={{ 'a.b' + $json.c }}",
        "={{ $json.a?.b }}",
        "={{ $json.list[0].id + .5 }}",
        "={{ [...$json.ids].join('.') }}",
        "={{ {{@:env:shop}}.slice(1) + $json.a }}",
        "=.{{ $json.a }}",
    ],
)
def test_a_dot_after_an_operand_is_no_sign_of_shell_expansion(given):
    assert read_scope(given, [ANYTHING]).warnings == ()


@pytest.mark.parametrize("given", ["={{ ['x-user'] }}", "={{ null }}", "=a-{{ 1 + 1 }}"])
def test_an_expression_that_reads_no_data_is_a_warning(given):
    (warning,) = read_scope(given, [ANYTHING]).warnings
    assert "reads nothing" in warning
