"""`backstay n8n`: the group of commands that add locks and rate limits to n8n workflows."""

from __future__ import annotations

import typer

from backstay.cli.commands.n8n import build, credentials, install, patch, picture, scopes, server

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


@app.callback()
def group() -> None:
    """Locks and rate limits for n8n workflows.

    Each command works on a workspace, a folder of workflow templates and settings, and changes all of
    its files or none. --dry-run shows the changes as a diff.

    [bold]Examples[/bold]

      backstay n8n init

      backstay n8n create-lock

      backstay n8n add-lock-to-workflow --workflow-key nightly --scope-expression "={{ 'nightly' }}"

      backstay n8n hydrate --env dev && backstay n8n validate --env dev
    """


app.command("init")(install.init)
app.command("create-lock")(install.create_lock)
app.command("copy-primitive")(install.copy_primitive)
app.command("add-lock-to-workflow")(patch.add_lock)
app.add_typer(scopes.app, name="scopes")
app.command("add-rate-limit-to-workflow")(patch.add_rate_limit)
app.command("remove-lock-from-workflow")(patch.remove_lock)
app.command("remove-rate-limit-from-workflow")(patch.remove_rate_limit)
app.command("register-error-handler")(patch.register_error_handler)
app.add_typer(credentials.app, name="manage-credentials")
app.command("validate")(build.validate)
app.command("hydrate")(build.hydrate)
app.command("picture")(picture.picture)
app.command("push")(server.push)
app.command("pull")(server.pull)
app.command("diff")(server.diff)
app.command("status")(server.status)
app.command("doctor")(server.doctor)
