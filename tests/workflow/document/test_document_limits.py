"""Attacks with small documents: what they expand to, and the work of reading them, is bounded. Work is counted in
steps, so the tests do not depend on the speed of the machine.
"""

import tracemalloc

import pytest

from backstay import Backstay, BadDefinition, BadInput, RunTooLarge
from backstay.job.api.registry import INTERNAL_JOB_TYPES
from backstay.job.reserved import DECIDE
from backstay.workflow.command import spec as command_spec
from backstay.workflow.command.render import render_command
from backstay.workflow.definition import Matrix
from backstay.workflow.document import effort
from backstay.workflow.document.effort import MOST_COMPARISONS, Effort, Hints, UnreadableDocument
from backstay.workflow.document.nodes import MOST_FOUND, MOST_TEXT
from backstay.workflow.document.value_reader import MOST_EXPRESSIONS
from backstay.workflow.document.yaml import inspect, read
from backstay.workflow.expressions.expression import Context, Need, parse
from backstay.workflow.expressions.interpolation import LARGEST_RENDERED, TextBudget, interpolate, interpolate_env
from backstay.workflow.planning import internal_jobs
from backstay.workflow.planning import matrix as matrices
from backstay.workflow.planning import plan as planning
from backstay.workflow.planning.inputs import MOST_NAMED, validate_inputs
from backstay.workflow.planning.plan import plan_run

MEGABYTE = 1024 * 1024


@pytest.fixture
def core():
    return Backstay("memory://").internals.core


def doubling_env(levels):
    lines = "".join(f"      A{n}: '${{{{ env.A{n - 1} }}}}${{{{ env.A{n - 1} }}}}'\n" for n in range(1, levels))
    return f"name: bomb\njobs:\n  a:\n    run: echo\n    env:\n      A0: xxxxxxxxxxxxxxxx\n{lines}"


def peak_of(function):
    """Call the function and return the largest amount of memory that Python used during the call, in bytes."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# ── rendered text ──


def test_variables_that_double_each_other_are_refused_before_they_grow(core):
    workflow = read(doubling_env(30))

    def attempt():
        with pytest.raises(RunTooLarge, match="job 'a'"):
            plan_run(core, workflow, {})

    assert peak_of(attempt) < 20 * MEGABYTE


def test_variables_of_a_step_and_its_script_count_against_the_same_limit(core):
    big = "x" * (LARGEST_RENDERED // 20)
    texts = "${{ inputs.b }}" * 11
    text = (
        "name: w\ninputs: {b: ''}\njobs: {a: {env: {E: '%s'}, steps: [{run: '%s'}]}}" % (texts, texts)  # noqa: UP031 - braces
    )
    workflow = read(text)
    plan_run(core, workflow, {"b": "x"})
    with pytest.raises(RunTooLarge):
        plan_run(core, workflow, {"b": big})


def test_an_ordinary_text_may_have_up_to_the_limit():
    text = "x" * 1000
    assert interpolate("${{ inputs.a }}!", Context(inputs={"a": text})) == text + "!"
    assert interpolate_env({"A": "1", "B": "${{ env.A }}2"}, Context(env={"C": "0"})) == {"A": "1", "B": "12"}


def test_many_expressions_with_empty_values_use_up_the_budget():
    budget = TextBudget("it", limit=10_000)
    with pytest.raises(RunTooLarge):
        interpolate("${{ inputs.a }}" * 100, Context(inputs={"a": ""}), budget)


def test_the_texts_of_all_jobs_of_a_run_are_bounded_together(core, monkeypatch):
    monkeypatch.setattr(planning, "LARGEST_TOTAL", 200_000)
    text = (
        "name: w\ninputs: {b: ''}\njobs: {a: {run: 'echo ${{ inputs.b }}', matrix: {n: [%s]}}}"  # noqa: UP031 - braces
        % ",".join(map(str, range(100)))
    )
    workflow = read(text)
    assert len(plan_run(core, workflow, {"b": "x"}).jobs) == 100
    with pytest.raises(RunTooLarge, match=r"together|all jobs"):
        plan_run(core, workflow, {"b": "x" * 2000})


def test_inputs_that_every_job_repeats_are_bounded(core):
    """1 MB of inputs, copied into each of 1000 jobs, would be a gigabyte."""
    names = [f"i{n}" for n in range(16)]
    text = "name: w\ninputs: {%s}\njobs: {a: {run: echo, matrix: {n: [%s]}}}" % (  # noqa: UP031 - braces
        ", ".join(f"{name}: ''" for name in names),
        ",".join(map(str, range(1000))),
    )
    workflow = read(text)

    def attempt():
        with pytest.raises(RunTooLarge, match="together"):
            plan_run(core, workflow, dict.fromkeys(names, "x" * 60_000))

    assert peak_of(attempt) < 200 * MEGABYTE


def test_dependencies_between_wide_matrices_are_bounded(core, monkeypatch):
    monkeypatch.setattr(planning, "LARGEST_TOTAL", MEGABYTE)
    values = ",".join(map(str, range(200)))
    wide = f"run: x, matrix: {{n: [{values}]}}"
    workflow = read(f"name: w\njobs: {{a: {{{wide}}}, b: {{needs: a, {wide}}}}}")
    with pytest.raises(RunTooLarge, match="together"):
        plan_run(core, workflow, {})


def test_a_rendered_label_or_name_is_bounded(core):
    for key in ("labels", "name"):
        workflow = read(f"name: w\ninputs: {{b: ''}}\njobs: {{a: {{run: x, {key}: '${{{{ inputs.b }}}}'}}}}")
        plan_run(core, workflow, {"b": "x"})
        with pytest.raises(RunTooLarge):
            plan_run(core, workflow, {"b": "x" * 5000})


def test_a_decide_job_renders_its_command_within_its_share_of_the_run(core):
    """Outputs of needed jobs are filled in while the run is under way, when no other job of the run is at hand."""
    text = """
name: w
jobs:
  a: {run: x}
  b:
    needs: a
    run: echo
    env:
      A0: "${{ needs.a.outputs.big }}"
"""
    text += "".join(f"      A{n}: '${{{{ env.A{n - 1} }}}}${{{{ env.A{n - 1} }}}}'\n" for n in range(1, 12))
    internal_jobs.install(core)
    (decide,) = [job for job in plan_run(core, read(text), {}).jobs if job.type == DECIDE]
    ((plan,), _) = core.services.get(INTERNAL_JOB_TYPES)[DECIDE].codec.decode_args(decide.args)
    assert 0 < plan.text_limit <= LARGEST_RENDERED
    template = command_spec.decode(plan.job.args)
    budget = TextBudget(f"job {template.key!r}", plan.text_limit)
    with pytest.raises(RunTooLarge, match="job 'b'"):
        render_command(template, Context(needs={"a": Need("success", {"big": "x" * 60_000})}), budget)


def test_decide_jobs_share_the_limit_of_the_run(core, monkeypatch):
    monkeypatch.setattr(planning, "LARGEST_TOTAL", 1_000_000)
    values = ",".join(map(str, range(100)))
    job = f"{{needs: a, run: '${{{{ needs.a.outputs.x }}}}', matrix: {{n: [{values}]}}}}"
    text = f"name: w\njobs: {{a: {{run: x}}, b: {job}}}"
    internal_jobs.install(core)
    codec = core.services.get(INTERNAL_JOB_TYPES)[DECIDE].codec
    limits = [codec.decode_args(job.args)[0][0].text_limit for job in plan_run(core, read(text), {}).jobs[1:]]
    assert len(limits) == 100
    assert sum(limits) < 2_000_000


# ── documents ──


def test_an_alias_repeats_at_most_so_many_characters():
    text = (
        "name: w\nx: &x "
        + "y" * 60_000
        + "\njobs: {a: {run: x, env: {"
        + ", ".join(f"A{n}: *x" for n in range(1000))
        + "}}}"
    )
    workflow, problems = inspect(text)
    assert workflow is None
    assert f"more than {MOST_TEXT} characters, with aliases expanded" in problems[-1].message


def test_a_stored_definition_has_a_largest_size(core, monkeypatch):
    from backstay.sync import Backstay as Blocking
    from backstay.workflow import definition

    monkeypatch.setattr(definition, "LARGEST", 1000)
    with Blocking("memory://") as stay, pytest.raises(RunTooLarge, match="definition"):
        stay.workflows.put("name: w\njobs: {a: {run: '" + "x" * 2000 + "'}}")


def test_reading_stops_after_so_many_problems():
    text = "name: w\njobs:\n" + "".join(f"  j{n}: {{runn: x}}\n" for n in range(5000))
    workflow, problems = inspect(text)
    assert workflow is None
    assert f"more than {MOST_FOUND} problems" in problems[-1].message
    assert len(problems) <= 103


def test_hints_compare_a_bounded_number_of_names(monkeypatch):
    """A document of 97 kB with an unknown name in each of 2,000 jobs compared two million names."""
    compared = []
    real = effort.get_close_matches

    def counting(word, names, **options):
        compared.append(len(names))
        return real(word, names, **options)

    monkeypatch.setattr(effort, "get_close_matches", counting)
    names = [f"some_quite_long_name_of_a_job_number_{n}" for n in range(2000)]
    text = "name: w\njobs:\n" + "".join(f"  {name}: {{run: x, needs: {name[:-1]}_x}}\n" for name in names)
    assert inspect(text)[0] is None
    assert sum(compared) <= MOST_COMPARISONS
    compared.clear()
    declared = "".join(f"  {name}: ''\n" for name in names[:1000])
    workflow = read(f"name: w\ninputs:\n{declared}jobs: {{a: {{run: x}}}}")
    with pytest.raises(BadInput) as caught:
        validate_inputs(workflow, {f"{name}_x": 1 for name in names})
    assert sum(compared) <= MOST_COMPARISONS
    assert f"{2000 - MOST_NAMED} more unknown inputs" in str(caught.value)


def test_an_early_problem_still_gets_its_hint():
    hints = Hints(2)
    assert hints.suggest("biuld", ["build", "test"]) == "; did you mean 'build'?"
    assert hints.suggest("tset", ["build", "test"]) == ""


def test_a_document_has_a_bounded_number_of_expressions():
    many = "${{ inputs.a }}" * 900
    text = "name: w\ninputs: {a: 1}\njobs:\n" + "".join(f"  j{n}: {{run: '{many}'}}\n" for n in range(6))
    workflow, problems = inspect(text)
    assert workflow is None
    assert f"more than {MOST_EXPRESSIONS} expressions" in problems[-1].message


def test_reading_stops_at_a_limit_of_steps_and_of_cpu_time():
    with pytest.raises(UnreadableDocument, match="too much work"):
        Effort(steps=10).spend(11)
    now = [0.0]
    spent = Effort(seconds=5, clock=lambda: now[0])
    spent.spend(1)
    now[0] = 5.1
    with pytest.raises(UnreadableDocument, match="too much work"):
        spent.spend(1, 3, 4)


def test_a_document_that_takes_too_long_is_refused(monkeypatch):
    monkeypatch.setattr(effort, "MOST_STEPS", 100)
    monkeypatch.setattr(Effort.__init__, "__defaults__", (100, 10.0, Effort.__init__.__defaults__[2]))
    with pytest.raises(BadDefinition, match="too much work"):
        read("name: w\njobs:\n" + "".join(f"  j{n}: {{run: x}}\n" for n in range(100)))


def test_a_long_number_in_an_expression_is_parsed_in_linear_time():
    """The digits were tried in all ways of splitting them (ReDoS): 256 such texts took a minute."""
    for _ in range(300):
        with pytest.raises(Exception, match="unexpected"):
            parse("1" * 3990 + "x")


def test_a_job_that_needs_many_jobs_is_checked_in_linear_time():
    names = [f"j{n}" for n in range(3000)]
    text = "name: w\njobs:\n" + "".join(f"  {name}: {{run: x}}\n" for name in names)
    text += f"  all: {{run: x, needs: [{', '.join(names)}]}}\n"
    workflow, problems = inspect(text)
    assert not problems
    assert len(workflow.jobs["all"].needs) == 3000


# ── matrices ──


class CountedValue(str):
    """A value that counts its comparisons."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other):
        CountedValue.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_excludes_are_found_by_hash_not_by_comparing_all_with_all():
    """1,000 combinations and 1,000 excludes were a million comparisons of all their values."""
    axes = {name: tuple(CountedValue(f"{name}{n}") for n in range(10)) for name in "abc"}
    exclude = tuple({"a": CountedValue(f"a{n % 10}"), "b": CountedValue("none")} for n in range(1000))
    CountedValue.comparisons = 0
    assert len(matrices.expand(Matrix(axes=axes, exclude=exclude))) == 1000
    assert CountedValue.comparisons < 20_000


def test_a_matrix_has_a_bounded_number_of_entries_and_names():
    def problem(matrix):
        _, problems = inspect(f"name: w\njobs: {{a: {{run: x, matrix: {matrix}}}}}")
        return " ".join(one.message for one in problems)

    excludes = ", ".join(f"{{a: {n}}}" for n in range(1001))
    assert "entries of exclude" in problem(f"{{a: [1, 2], exclude: [{excludes}]}}")
    axes = ", ".join(f"a{n}: [1]" for n in range(101))
    assert "names of values" in problem(f"{{{axes}}}")
    assert "characters" in problem(f"{{a: [1, {'x' * 600}]}}")
    for given in (
        Matrix(axes={"a": (1,)}, exclude=({"a": 2},) * 1001),
        Matrix(axes={f"a{n}": (1,) for n in range(101)}),
        Matrix(axes={"a": tuple(range(1001))}),
    ):
        with pytest.raises(RunTooLarge):
            matrices.expand(given)


def test_includes_that_extend_every_combination_are_bounded():
    """500 includes that each add values to 500 combinations would be millions of values."""
    include = tuple({f"n{n % 90}": n, **{f"m{k}": n for k in range(9)}} for n in range(490))
    with pytest.raises(RunTooLarge, match="values together"):
        matrices.expand(Matrix(axes={"a": tuple(range(500))}, include=include))


def test_expanding_a_matrix_equals_its_definition():
    """The result of the indexed search equals that of comparing every combination with every entry."""
    axes = {"a": (1, True, "1", 2.0), "b": ("x", None), "c": (0, False)}
    exclude = ({"a": 1, "c": False}, {"b": None, "a": "1"}, {"a": 2}, {"a": 7})
    include = ({"a": True, "z": 1}, {"c": 0, "z": 2}, {"q": 3}, {"a": "new", "b": "x"}, {"a": 1, "b": "x"})

    def equal(one, other):
        return one == other and isinstance(one, bool) is isinstance(other, bool)

    def covers(part, whole):
        return all(name in whole and equal(whole[name], value) for name, value in part.items())

    found = [{"a": a, "b": b, "c": c} for a in axes["a"] for b in axes["b"] for c in axes["c"]]
    found = [one for one in found if not any(covers(entry, one) for entry in exclude)]
    made = [dict(one) for one in found]
    for extra in include:
        fixed = {name: value for name, value in extra.items() if name in axes}
        suits = [place for place, one in enumerate(found) if covers(fixed, one)]
        if suits and len(fixed) < len(extra):
            for place in suits:
                made[place].update(extra)
        elif not suits:
            made.append(dict(extra))
    assert matrices.expand(Matrix(axes=axes, exclude=exclude, include=include)) == made
