"""`backstay n8n init`, `create-lock` and `copy-primitive`: create a workspace and install the primitives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from backstay.cli.commands.n8n.options import HERE, AsJson, DryRun, Envs, Where, join_names, report_result
from backstay.cli.output import printable, say, say_json, say_table
from backstay.errors import ConfigError

if TYPE_CHECKING:
    from backstay.n8n.primitives import Transport
    from backstay.n8n.workspace.workspace import Workspace

Force = Annotated[
    bool, typer.Option("--force-overwrite", help="Replace existing files; otherwise they are kept and listed.")
]
TransportName = Annotated[
    str,
    typer.Option(
        "--transport",
        metavar="redis|http",
        help="redis: n8n's own Redis nodes, no service needed. http: backstay serve; atomic, fenced, FIFO.",
        show_default="redis, or the installed one",
    ),
]

#: The environments of a new workspace.
ENVIRONMENTS = ["dev", "prod"]


def init(
    *,
    environments: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="ENV", help="An environment; may be repeated.", show_default="dev, prod"),
    ] = None,
    url: Annotated[str, typer.Option("--n8n-url", metavar="URL", help="n8n's URL.")] = "http://127.0.0.1:5678",
    workspace: Where = HERE,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Create a workspace: settings for each environment, a folder for templates, a folder for built files.

    Existing files are not changed: run the command again, for example, to add an environment.

    [bold]Examples[/bold]

      backstay n8n init

      backstay n8n init --workspace flows --env dev --env staging --env prod
    """
    from backstay.n8n.sync.client import check_url
    from backstay.n8n.workspace.init import check_location, create_missing_files
    from backstay.n8n.workspace.workspace import Workspace

    check_url(url)
    check_location(workspace)
    known = Workspace(workspace).environments
    with Workspace(workspace).edit(dry_run=dry_run) as view:
        create_missing_files(view, environments or ([] if known else ENVIRONMENTS), url)
    report_result(
        view,
        {"workspace": str(workspace), "environments": list(view.environments)},
        [
            f"{workspace}: workspace with the environments {join_names(view.environments)}.",
            "Next: put a workflow into n8n-workflows-template/KEY.template.json, then backstay n8n create-lock",
        ],
        as_json=as_json,
        dry_run=dry_run,
    )


def create_lock(
    *,
    include_error_handler: Annotated[
        bool, typer.Option("--include-error-handler", help="Also error_handler_lock_cleanup, for --lock-on-error.")
    ] = False,
    include_rate_limit: Annotated[
        bool, typer.Option("--include-rate-limit", help="Also rate_limit_check, for add-rate-limit-to-workflow.")
    ] = False,
    force_overwrite: Force = False,
    transport: TransportName = "",
    environments: Envs = None,
    mint: Annotated[
        bool, typer.Option("--mint", help="Also create them in each environment's n8n through its API.")
    ] = False,
    workspace: Where = HERE,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Install the workflows that take and release locks: lock_acquisition, lock_release and, on request, others.

    These primitives are copied as templates and registered in each environment. This needs no network;
    --mint also creates them in n8n and registers n8n's ids.

    [bold]Examples[/bold]

      backstay n8n create-lock

      backstay n8n create-lock --include-error-handler --include-rate-limit

      backstay n8n create-lock --transport http --env prod --mint
    """
    from backstay.n8n.workspace import install
    from backstay.n8n.workspace.workspace import Workspace

    chosen = _transport(transport)
    with Workspace.open(workspace).edit(dry_run=dry_run) as view:
        envs = view.select_environments(environments)
        done = install.create_lock(
            view,
            environments=envs,
            transport=chosen,
            error_handler=include_error_handler,
            rate_limit=include_rate_limit,
            force=force_overwrite,
        )
        keys = [*done.written, *done.kept]
        minted: dict[str, dict[str, str]] = {}
        if mint and not dry_run:
            from backstay.cli.commands.n8n.server import create_in_n8n

            minted = create_in_n8n(view, envs, keys)
    ids = {env: {key: str(view.entry(env, key).get("id", "")) for key in keys} for env in envs}
    report_result(
        view,
        {
            "transport": done.transport,
            "written": list(done.written),
            "kept": list(done.kept),
            "environments": list(envs),
            "ids": ids,
        },
        [
            *([f"Installed for {done.transport}: {join_names(done.written)}."] if done.written else []),
            *([f"Kept: {join_names(done.kept)}."] if done.kept else []),
            *(
                f"Created in {env}: {join_names(f'{key} ({made})' for key, made in minted[env].items())}."
                for env in minted
            ),
            "Next: backstay n8n add-lock-to-workflow --workflow-key KEY --scope-expression \"={{ 'name' }}\"",
        ],
        as_json=as_json,
        dry_run=dry_run,
        warnings=done.warnings,
    )


def copy_primitive(
    *,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="KEY", help="The primitive to copy; may be repeated.", show_default=False),
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="List the primitives and which of them are installed.")] = False,
    force_overwrite: Force = False,
    transport: TransportName = "",
    workspace: Where = HERE,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Copy primitives as templates without registering them in an environment.

    [bold]Examples[/bold]

      backstay n8n copy-primitive --list

      backstay n8n copy-primitive --name rate_limit_check
    """
    from backstay.n8n import primitives
    from backstay.n8n.workspace import install
    from backstay.n8n.workspace.workspace import Workspace

    chosen = _transport(transport)
    if show or not name:
        if not show:
            raise ConfigError(f"choose a primitive with --name: {', '.join(primitives.KEYS)}; --list shows more")
        _list(Workspace.open(workspace), as_json=as_json)
        return
    if unknown := [one for one in name if one not in primitives.KEYS]:
        raise ConfigError(f"unknown primitive {unknown[0]!r}; the primitives are {', '.join(primitives.KEYS)}")
    with Workspace.open(workspace).edit(dry_run=dry_run) as view:
        used = install.choose_transport(install.transports(view), chosen)
        done = install.copy_primitives(view, name, used, force=force_overwrite)
    report_result(
        view,
        {"transport": done.transport, "written": list(done.written), "kept": list(done.kept)},
        [
            *([f"Copied for {done.transport}: {join_names(done.written)}."] if done.written else []),
            *([f"Kept: {join_names(done.kept)}."] if done.kept else []),
        ],
        as_json=as_json,
        dry_run=dry_run,
        warnings=done.warnings,
    )


def _list(workspace: Workspace, *, as_json: bool) -> None:
    from backstay.n8n import primitives

    found: list[dict[str, object]] = []
    with workspace.read_view() as view:
        for key in primitives.KEYS:
            here = primitives.identify(view.read(key)) if view.has(key) else None
            found.append(
                {
                    "name": key,
                    "version": primitives.VERSION,
                    "here": view.has(key),
                    "here_version": here.version if here else None,
                    "transport": here.transport if here else None,
                }
            )
    if as_json:
        say_json({"primitives": found})
        return
    say_table(
        ("PRIMITIVE", "VERSION", "HERE"),
        [
            (
                printable(str(one["name"])),
                str(one["version"]),
                f"version {one['here_version']}, {one['transport']}"
                if one["here_version"]
                else ("not Backstay's" if one["here"] else "no"),
            )
            for one in found
        ],
    )
    say("Copy one with --name; create-lock installs and registers them.")


def _transport(given: str) -> Transport | None:
    match given:
        case "":
            return None
        case "redis" | "http":
            return given
        case _:
            pass
    raise ConfigError(f"--transport {given!r} is neither redis nor http")
