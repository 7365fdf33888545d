"""The command line: arguments in, a table for people or JSON for machines out. A module per command."""

from cesar.cli.root import app, main

__all__ = ["app", "main"]
