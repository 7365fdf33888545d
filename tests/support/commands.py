"""The command line from tests: in this process, or as people start it."""

import hashlib
import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from typer.testing import CliRunner

from cesar.base.errors import CesarError
from cesar.cli.root import app

PATIENCE = 300


def agreed(*paths):
    """What people compare over the telephone, as options."""
    return [
        word for path in paths for word in ("--sha256", hashlib.sha256(Path(path).read_bytes()).hexdigest())
    ]


def call(*arguments):
    """What a command prints; errors of ours come through as they are."""
    done = CliRunner().invoke(app, list(map(str, arguments)))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def read(*arguments):
    """The JSON that a command prints."""
    return json.loads(call(*arguments, "--json"))


def refused(*arguments):
    """The error with which a command ends."""
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert isinstance(result.exception, CesarError), result.output
    return str(result.exception)


def run(*arguments, timeout=PATIENCE):
    """A `cesar` process, to its end."""
    command = [sys.executable, "-m", "cesar", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)


@contextmanager
def started(*arguments, cwd):
    """A `cesar` process; killed at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cesar", *map(str, arguments)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
