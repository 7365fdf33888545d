"""The command line: argument parsing and tables only."""

import typer

app = typer.Typer(no_args_is_help=True)
