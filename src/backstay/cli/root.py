"""The root command: it reads the global options and turns errors into one line and an exit code."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from backstay.cli import exit_codes, groups
from backstay.cli.connection import URL, ConnectionOptions
from backstay.cli.output import say, say_refusal, wants_json, warn
from backstay.errors import BackstayError


class Root(TyperGroup):
    """Runs a command and prints a BackstayError as one line on standard error instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BackstayError as error:
            warn(str(error))
            if wants_json(ctx):
                say_refusal(str(error), type(error).__name__, exit_codes.for_error(error))
            raise typer.Exit(exit_codes.for_error(error)) from error
        except typer.BadParameter as error:
            if wants_json(ctx):
                say_refusal(error.format_message(), type(error).__name__, exit_codes.USAGE)
            raise


app = typer.Typer(
    cls=Root,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        say(f"backstay {version('backstay')}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    url: Annotated[
        str, typer.Option("--url", metavar="URL", envvar=["BACKSTAY_URL", "REDIS_URL"], help="The engine.")
    ] = URL,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            metavar="NAME",
            envvar="BACKSTAY_NAMESPACE",
            help="Keys and tables are prefixed with it; apps with different namespaces never see each other.",
            show_default="backstay",
        ),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(
            "--shards",
            metavar="N",
            min=1,
            help="The number of shards of jobs on Redis. All processes must use the same number.",
            show_default="BACKSTAY_SHARDS, else 1",
        ),
    ] = None,
    *,
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Locks that hold, jobs that finish, guarantees you can run.

    [bold]Examples[/bold]

      backstay lock nightly-report -- ./report.sh

      backstay --url redis://127.0.0.1:6379/0 locks ls

      BACKSTAY_URL=redis://127.0.0.1:6379/0 backstay locks show nightly-report

    Every command has its own help: backstay lock --help
    """
    context.obj = ConnectionOptions(url, namespace, shards)


groups.register(app)
