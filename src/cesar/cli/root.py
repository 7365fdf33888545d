"""All commands in one: what `cesar` runs.

Commands that train, draw or compare belong to the laboratory, which this library does not import: its distribution
registers them as an entry point, and they are here where their dependencies are installed.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Annotated

import typer
from rich.markup import escape

import cesar
from cesar.base.errors import CesarError, ConfigError
from cesar.base.exits import Exit
from cesar.cli import audit, explain, network, peer, plan
from cesar.cli.output import notices
from cesar.peer.trust.foreign import escaped

ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True}

LABORATORY = ("run", "report", "demo", "bench", "data", "attack", "reproduce")
"""Commands of the laboratory, to say what they need where it cannot be loaded."""


app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    help="Train one model together, without a server: each site's training is only ever seen added to that of others.",
)


def add_laboratory() -> None:
    """Add the laboratory's commands; without its dependencies, commands of the same names say what to install."""
    try:
        for found in entry_points(group="cesar.laboratory"):
            found.load()(app, network.app)
    except ModuleNotFoundError as missing:
        for name in LABORATORY:
            app.command(name, help="Needs the laboratory.", context_settings=ANYTHING)(_refuse(name, missing))


def _refuse(command: str, missing: ModuleNotFoundError) -> Callable[[], None]:
    def refuse() -> None:
        raise ConfigError(
            f"cesar {command} is of the laboratory, and {missing.name} is not installed; "
            "in a copy of cesar's repository: pip install '.[lab]'"
        )

    return refuse


def flow(group: typer.Typer) -> None:
    """Let the terminal break the lines of help: a docstring's own line breaks leave half-empty lines in a narrow one."""
    for one in group.registered_commands:
        if one.help is None and one.callback is not None and one.callback.__doc__:
            one.help = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(one.callback.__doc__))
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            flow(inner.typer_instance)


def main() -> None:
    """Run the command line; what cesar refuses is one clear line and exit code 2."""
    try:
        app()
    except CesarError as error:
        notices.print(
            f"[bold red]error:[/] {escape(escaped(str(error), keep=chr(10)))}",
            highlight=False,
            soft_wrap=True,
        )
        sys.exit(Exit.REFUSED)


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


app.command("audit")(audit.command)
app.command("explain")(explain.command)
app.add_typer(plan.app, name="plan")
app.add_typer(network.app, name="network")
app.add_typer(peer.app, name="peer")
add_laboratory()
flow(app)
