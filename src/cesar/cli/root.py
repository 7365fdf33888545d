"""All commands in one: what `cesar` runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.markup import escape

import cesar
from cesar.cli import attack, audit, bench, data, demo, explain, network, peer, plan, report, reproduce, run
from cesar.cli.output import notices
from cesar.errors import CesarError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    help="Train together with no server, and nobody sees anybody's parameters.",
)
app.command("run")(run.command)
app.command("report")(report.command)
app.command("demo")(demo.command)
app.command("audit")(audit.command)
app.command("explain")(explain.command)
app.add_typer(plan.app, name="plan")
app.add_typer(bench.app, name="bench")
app.add_typer(data.app, name="data")
app.add_typer(network.app, name="network")
app.add_typer(peer.app, name="peer")
app.add_typer(attack.app, name="attack")
app.add_typer(reproduce.app, name="reproduce")


def main() -> None:
    """Run the command line; what cesar refuses is one clear line and exit code 2."""
    try:
        app()
    except CesarError as error:
        notices.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cesar {cesar.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass
