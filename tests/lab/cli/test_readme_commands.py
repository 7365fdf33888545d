"""Every command that README prints does what it says there, in this order and in one folder."""

import re
import shlex
from pathlib import Path

from support.commands import PATIENCE, started
from support.lan import free_ports

README = Path(__file__).parents[3] / "README.md"


def printed() -> list[list[str]]:
    blocks = re.findall(r"^```sh\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]


def test_every_command_runs_as_printed(tmp_path):
    """Only the ports are other ones, in case somebody has these, and training is shorter."""
    more = {"init": ["--port", str(free_ports(8))], "up": ["--rounds", "4"]}
    ran = []
    for program, *words in printed():
        if program == "cesar":
            with started(*words, *more.get(words[1] if len(words) > 1 else "", []), cwd=tmp_path) as process:
                out, log = process.communicate(timeout=4 * PATIENCE)  # eight processes on a slow machine
            assert process.returncode == 0, log
            assert out, words
            ran.append(words[0])
    assert ran == ["explain", "network", "network", "audit"]


def test_the_other_lines_are_tried_elsewhere():
    """`make` by test_front_door and in a fresh clone, the install line by test_packaging: no other kind is shown."""
    others = [" ".join(words) for words in printed() if words[0] != "cesar"]
    assert others == [
        "make demo",
        "make test",
        "python3 -m venv .venv && . .venv/bin/activate",
        "pip install .[lab,peers]",
    ]
