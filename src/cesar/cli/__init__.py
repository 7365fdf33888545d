"""The command line: arguments in, a table for people or JSON for machines out. A module per command."""


def main() -> None:
    """Run the command line."""
    # The laboratory's commands import rooms of this package, so it is complete before they are looked for.
    from cesar.cli.root import main as run  # noqa: PLC0415

    run()
