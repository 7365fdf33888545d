"""The command line as a newcomer meets it: help, the version, and errors that say what to do."""

import subprocess
import sys

import pytest
import typer

import cesar
from cesar.cli.root import app
from support.commands import run


def test_it_starts_without_the_extras():
    """Neither is torch imported, which takes seconds, nor anything that a plain installation lacks."""
    extras = (
        *("torch", "sklearn", "pydantic", "grpc", "prometheus_client", "safetensors", "ray"),
        *("platformdirs", "PIL", "transformers", "sentencepiece", "plotly", "jinja2"),
    )
    code = f"import sys; sys.modules.update(dict.fromkeys({extras})); import cesar.cli"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_version():
    assert run("--version").stdout.strip() == f"cesar {cesar.__version__}"


@pytest.mark.parametrize(
    "command",
    [(), ("plan",), ("plan", "alpha"), ("bench",), ("bench", "round"), ("run",), ("demo",), ("data",)],
    ids=" ".join,
)
def test_help(command):
    done = run(*command, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("plan", "alpha", "--share", "0.3", "--degree", "1"), "degree of at least 2"),
        (("plan", "share", "--alpha", "1.5", "--degree", "6"), "fraction"),
        (("bench", "round", "--nodes", "5", "--degree", "3"), "no 3-regular graph"),
        (("run",), "experiment file"),
        (("run", "nowhere.toml"), "no experiment file"),
        (("report", "nowhere"), "nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_errors_are_one_clear_line(arguments, message):
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_the_terminal_breaks_the_lines_of_help():
    """A docstring's own line breaks would leave half-empty lines."""
    command = typer.main.get_command(app)
    for words in (("network", "init"), ("peer", "run"), ("audit",)):
        one = command
        for word in words:
            one = one.commands[word]
        first, *more = one.help.split("\n\n")
        assert more
        assert not [paragraph for paragraph in (first, *more) if "\n" in paragraph]
