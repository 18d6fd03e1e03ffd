"""Render the templates of a command job."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from backstay.workflow.command.spec import CommandSpec
from backstay.workflow.expressions.expression import Context
from backstay.workflow.expressions.interpolation import OPEN, interpolate, interpolate_env, parse_template


def render_command(spec: CommandSpec, context: Context) -> CommandSpec:
    """Render the variables in order, then the steps, which may refer to them. Conditions of steps and `outputs` are
    evaluated later, while and after the job runs. Call it once per command: rendered text must not be rendered again
    (injection).
    """
    env = interpolate_env(spec.env, context)
    outside = replace(context, env=env)
    steps = tuple(
        replace(
            step,
            env=own,
            run=interpolate(step.run, inside),
            name=interpolate(step.name, inside),
            working_directory=interpolate(step.working_directory, inside),
        )
        for step in spec.steps
        for own in (interpolate_env(step.env, outside),)
        for inside in (replace(outside, env={**env, **own}),)
    )
    return replace(spec, env=env, steps=steps, working_directory=interpolate(spec.working_directory, outside))


def references_needs(spec: CommandSpec) -> bool:
    """Whether a template of the command refers to `needs`, so it can be rendered only after those jobs have ended."""
    texts = [*spec.env.values(), spec.working_directory]
    for step in spec.steps:
        texts += [*step.env.values(), step.run, step.name, step.working_directory]
    return any_references_needs(texts)


def any_references_needs(texts: Iterable[str]) -> bool:
    """Whether one of the templates refers to `needs`."""
    return any(
        reference.path[0] == "needs"
        for text in texts
        if OPEN in text
        for expression in parse_template(text).expressions
        for reference in expression.references
    )
