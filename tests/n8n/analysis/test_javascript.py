"""The JavaScript tokenizer separates code from strings, templates, regular expressions and comments."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.n8n.analysis.javascript import JavaScriptSyntaxError, tokenize
from backstay.n8n.analysis.purity import find_impurities


def kinds(source):
    return [(token.kind, token.text) for token in tokenize(source)]


def used(source):
    words = [token for token in tokenize(source) if token.kind != "comment"]
    return [what for _, what, _ in find_impurities(words)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a / b / c", ["a", "/", "b", "/", "c"]),
        ("a = /b/g.test(c)", ["a", "=", "/b/g", ".", "test", "(", "c", ")"]),
        ("if (x) /y/.test(z)", ["if", "(", "x", ")", "/y/", ".", "test", "(", "z", ")"]),
        ("(x) / y / z", ["(", "x", ")", "/", "y", "/", "z"]),
        ("return /[/]'/", ["return", "/[/]'/"]),
        ("x.return / 2 / y", ["x", ".", "return", "/", "2", "/", "y"]),
        ("{} /'/.x", ["{", "}", "/'/", ".", "x"]),
        ("y = {} / 2", ["y", "=", "{", "}", "/", "2"]),
        ("i++ / 2 / 3", ["i", "++", "/", "2", "/", "3"]),
        (r"'it\'s' + 'a'", [r"'it\'s'", "+", "'a'"]),
        ("'a\\\nb'", ["'a\\\nb'"]),
        ("`a${b}c${`d${e}`}f`", ["`a${", "b", "}c${", "`d${", "e", "}`", "}f`"]),
        ("`${{a: {}}}`", ["`${", "{", "a", ":", "{", "}", "}", "}`"]),
        (r"`\${x} \` $`", [r"`\${x} \` $`"]),
        ("a // 'b\nc", ["a", "// 'b", "c"]),
        ("a /* ' */ b", ["a", "/* ' */", "b"]),
        ("1.5e-3 + .5 + 0xff + 1_000n", ["1.5e-3", "+", ".5", "+", "0xff", "+", "1_000n"]),
        ("a?.b ? .5 : 1", ["a", "?.", "b", "?", ".5", ":", "1"]),
        ("#x in y", ["#x", "in", "y"]),
        (r"\u0066etch", ["fetch"]),
        (r"f\u{65}tch", ["fetch"]),
        ("größe = 1", ["größe", "=", "1"]),
    ],
)
def test_source_is_split_into_tokens(source, expected):
    assert [text for _, text in kinds(source)] == expected


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("a\n'b", 2),
        ("`a", 1),
        ("/* a", 1),
        ("a = /b", 1),
        ("(\n[\n)", 3),
        ("}", 1),
        ("f(", 1),
        ("`${a`", 1),
        ("'a\nb'", 1),
    ],
)
def test_unbalanced_source_is_a_syntax_error_with_its_line(source, line):
    with pytest.raises(JavaScriptSyntaxError) as caught:
        tokenize(source)
    assert caught.value.line == line


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("fetch('x')", ["fetch"]),
        ("a.fetch('x'); a?.fetch()", []),
        ("({ fetch: 1, eval() { return 1 } })", []),
        ("ok ? fetch : 1", ["fetch"]),
        ("const { fetch } = $json; fetch()", []),
        ("const { a: process } = $json; process", []),
        ("const { process: a } = $json; a", []),
        ("[1].map(self => self + 1)", []),
        ("[1].map((self, { window }) => self + window)", []),
        ("function f(fetch) { return fetch() }", []),
        ("try { x() } catch (process) { return process }", []),
        ("return { fetch }", ["fetch"]),
        ("return [...global.x]", ["global"]),
        ("new Function('x')", ["Function"]),
        ("x = async () => await fetch('x')", ["fetch"]),
        ("this.helpers.request()", ["this.helpers"]),
        ("() => this.helpers.request()", ["this.helpers"]),
        ("if (a) { this.helpers.request() }", ["this.helpers"]),
        ("function f() { return this.x }", []),
        ("class A extends B { m() { return () => this.x } }", []),
        ("const o = { m() { return this.x } }; this.y", ["this.y"]),
        ("const self = this", ["this"]),
        ("this.getWorkflowStaticData('global')", ["this.getWorkflowStaticData"]),
        ("$('A').all(); $json.x; $input.item; $now.toISO(); $today; $node['A']; $execution.id; $workflow.id", []),
        ("$items('A'); $vars.x", ["$items", "$vars"]),
        ("const $row = 1; $row", []),
        ("import fs from 'fs'", ["import"]),
        ("''['constructor']", ['["constructor"] leads to Function']),
        ("fetch(); fetch()", ["fetch"]),
    ],
)
def test_only_impure_global_names_are_reported(source, expected):
    assert used(source) == expected


@given(st.text(alphabet="abf$ \n\\'\"`/*{}()[].;=>?:#u0{}+", max_size=60))
def test_any_text_is_tokenized_or_refused(source):
    with contextlib.suppress(JavaScriptSyntaxError):
        found = tokenize(source)
        list(find_impurities([token for token in found if token.kind != "comment"]))
        if "\\" not in source:
            assert "".join("".join(token.text for token in found).split()) == "".join(source.split())
