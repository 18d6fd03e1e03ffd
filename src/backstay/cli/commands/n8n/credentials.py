"""`backstay n8n manage-credentials`: create and link n8n credentials. Their values are never shown or stored here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from backstay.cli.commands.n8n.options import HERE, AsJson, DryRun, Env, Where, report_result
from backstay.cli.output import printable, say, say_json, say_table, warn
from backstay.errors import ConfigError, N8nError, WorkspaceError

if TYPE_CHECKING:
    from backstay.n8n.workspace.workspace import Workspace

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

Name = Annotated[str, typer.Option("--name", metavar="TEXT", help="The credential's name in n8n.", show_default=False)]


@app.callback()
def group() -> None:
    """Create credentials in n8n, or link existing ones."""


@app.command()
def create(
    *,
    env: Env,
    key: Annotated[
        str,
        typer.Option("--key", metavar="KEY", help="The name that templates use: credentials.KEY.", show_default=False),
    ],
    kind: Annotated[
        str, typer.Option("--type", metavar="TYPE", help="n8n's type: redis, httpHeaderAuth, …", show_default=False)
    ],
    name: Name = "",
    env_vars: Annotated[
        list[str] | None,
        typer.Option(
            "--env-vars",
            metavar="FIELD=VARIABLE,…",
            help="The variable that each field is read from, in the process or n8n-config/.env.ENV.",
            show_default=False,
        ),
    ] = None,
    workspace: Where = HERE,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Create a credential through n8n's API and write its id to the environment's settings.

    A second call changes nothing. Values are read from variables and converted to the types of n8n's schema: a
    port becomes a number. They are never shown, and stored only in n8n.

    [bold]Examples[/bold]

      backstay n8n manage-credentials create --env dev --key redis --type redis --name "Redis (dev)" \
--env-vars host=REDIS_HOST,port=REDIS_PORT,password=REDIS_PASSWORD

      backstay n8n manage-credentials create --env dev --key backstay --type httpHeaderAuth --env-vars value=TOKEN
    """
    from backstay.n8n.sync import credentials
    from backstay.n8n.sync.deployment import connect
    from backstay.n8n.workspace import environments
    from backstay.n8n.workspace.workspace import Workspace

    environments.check_key(key, "credential key")
    called = name or f"{key} ({env})"
    with Workspace.open(workspace).edit(dry_run=dry_run) as view:
        before = view.entry(env, key, "credentials")
        credentials.check_type(before, key, kind)
        facts: dict[str, Any] = {"env": env, "key": key, "type": kind, "name": called, "created": False}
        if credentials.is_linked(before):
            facts |= {"id": before["id"], "name": str(before.get("name", ""))}
            lines = [f"credentials.{key} of {env} is already {before.get('name', '')} ({before['id']})."]
        else:
            variables = credentials.variables_of(view, env)
            server = None if dry_run and kind in credentials.KNOWN else connect(view, env)
            schema = credentials.KNOWN.get(kind) or credentials.CredentialSchema.of(
                _connected(server).credential_schema(kind)
            )
            sources = credentials.FieldSources.parse(env_vars or [], schema)
            data = sources.values(schema, variables)
            facts["fields"] = sources.describe(schema)
            made = "(assigned by n8n)" if dry_run else _connected(server).create_credential(called, kind, data)
            try:
                credentials.link(view, env, key, id=made, name=called, type=kind)
            except N8nError:
                if not dry_run:
                    _connected(server).delete_credential(made)
                raise
            facts |= {"id": None if dry_run else made, "created": not dry_run}
            lines = [f"{called} ({made}) was created in n8n; templates refer to it as credentials.{key}."]
    if dry_run and not as_json and "fields" in facts:
        for field, shown in facts["fields"].items():
            say(printable(f"{field}: {shown}"))
    report_result(view, facts, lines, as_json=as_json, dry_run=dry_run)


def _connected(server: Any) -> Any:
    if server is None:
        raise TypeError("a server connection is required here")
    return server


@app.command("list-link")
def list_link(
    *,
    env: Env,
    key: Annotated[
        str,
        typer.Option(
            "--key", metavar="KEY", help="Link a credential under this name; without it, list.", show_default=False
        ),
    ] = "",
    kind: Annotated[
        str, typer.Option("--type", metavar="TYPE", help="Only credentials of this n8n type.", show_default=False)
    ] = "",
    name: Name = "",
    known: Annotated[
        str,
        typer.Option(
            "--id",
            metavar="ID",
            help="The credential's id, from its page in n8n; n8n is not contacted.",
            show_default=False,
        ),
    ] = "",
    workspace: Where = HERE,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """List credentials, or link one that exists in n8n.

    n8n's API cannot list credentials. One that a workflow uses is found by --name; link any other one with
    --id, the last part of its page's URL in n8n.

    [bold]Examples[/bold]

      backstay n8n manage-credentials list-link --env dev

      backstay n8n manage-credentials list-link --env dev --key redis --name "Redis (dev)"

      backstay n8n manage-credentials list-link --env dev --key redis --type redis --name Redis --id Ab3dEfGh1jKlMn0p
    """
    from backstay.n8n.sync import credentials
    from backstay.n8n.sync.deployment import connect, used_credentials
    from backstay.n8n.workspace import environments
    from backstay.n8n.workspace.workspace import Workspace

    opened = Workspace.open(workspace)
    if not key:
        with opened.read_view() as view:
            _list(view, env, kind, as_json=as_json)
        return
    environments.check_key(key, "credential key")
    with opened.edit(dry_run=dry_run) as view:
        before = view.entry(env, key, "credentials")
        if known:
            if not (kind or before.get("type")):
                raise ConfigError("--id needs --type: n8n's API does not return the type")
            found = {"id": known, "name": name or str(before.get("name") or key), "type": kind or str(before["type"])}
        else:
            seen = used_credentials(connect(view, env))
            fits = [one for one in seen if kind in ("", one["type"]) and name in ("", one["name"])]
            if len(fits) != 1:
                there = ", ".join(f"{one['name']} ({one['type']})" for one in fits or seen) or "none"
                raise WorkspaceError(
                    f"{len(fits)} credentials match among those that workflows use: {there}. Pass --name and --type,"
                    " or --id"
                )
            found = fits[0]
        credentials.link(view, env, key, id=found["id"], name=found["name"], type=found["type"])
    lines = [f"credentials.{key} of {env} is {found['name']} ({found['id']})."]
    report_result(view, {"env": env, "key": key, **found}, lines, as_json=as_json, dry_run=dry_run)


def _list(view: Workspace, env: str, kind: str, *, as_json: bool) -> None:
    """Print the credentials in the settings and, when n8n can be reached, the others that its workflows use."""
    from backstay.n8n.sync.deployment import connect, used_credentials

    linked = {key: view.entry(env, key, "credentials") for key in view.credentials(env)}
    keys = {str(entry.get("id", "")): key for key, entry in linked.items()}
    rows: list[dict[str, str]] = [
        {"key": key, **{part: str(entry.get(part, "")) for part in ("id", "name", "type")}}
        for key, entry in linked.items()
    ]
    try:
        seen = used_credentials(connect(view, env))
    except (ConfigError, N8nError) as error:
        warn(f"listing only the credentials in the settings: {error}")
        seen = []
    rows += [{"key": "", **one} for one in seen if one["id"] not in keys]
    rows = [row for row in rows if kind in ("", row["type"])]
    if as_json:
        say_json({"env": env, "credentials": rows})
    else:
        columns = ("key", "id", "name", "type")
        say_table(tuple(map(str.upper, columns)), [tuple(printable(row[part]) for part in columns) for row in rows])
