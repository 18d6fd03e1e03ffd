"""`backstay n8n`: locks and limits for n8n workflows, in a folder of templates."""

from __future__ import annotations

import typer

from backstay.cli import n8n_build, n8n_credentials, n8n_install, n8n_picture, n8n_scopes, n8n_server, n8n_weave

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


@app.callback()
def group() -> None:
    """Locks and rate limits for n8n workflows.

    Each command works on a workspace, a folder of templates and settings, and changes all of its files
    or none. --dry-run shows the diff.

    [bold]Examples[/bold]

      backstay n8n init

      backstay n8n create-lock

      backstay n8n add-lock-to-workflow --workflow-key nightly --scope-expression "={{ 'nightly' }}"

      backstay n8n hydrate --env dev && backstay n8n validate --env dev
    """


app.command("init")(n8n_install.init)
app.command("create-lock")(n8n_install.create_lock)
app.command("copy-primitive")(n8n_install.copy_primitive)
app.command("add-lock-to-workflow")(n8n_weave.add_lock)
app.add_typer(n8n_scopes.app, name="scopes")
app.command("add-rate-limit-to-workflow")(n8n_weave.add_rate_limit)
app.command("remove-lock-from-workflow")(n8n_weave.remove_lock)
app.command("remove-rate-limit-from-workflow")(n8n_weave.remove_rate_limit)
app.command("register-error-handler")(n8n_weave.register_error_handler)
app.add_typer(n8n_credentials.app, name="manage-credentials")
app.command("validate")(n8n_build.validate)
app.command("hydrate")(n8n_build.hydrate)
app.command("picture")(n8n_picture.picture)
app.command("push")(n8n_server.push)
app.command("pull")(n8n_server.pull)
app.command("diff")(n8n_server.diff)
app.command("status")(n8n_server.status)
app.command("doctor")(n8n_server.doctor)
