"""Draw docs/network-up.svg: the live table of `cesar network up`, taken from a terminal in the middle of a real run.

python tools/pictures/live_table.py     # about a minute
"""

from __future__ import annotations

import io
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

OUT = Path(__file__).parents[2] / "docs" / "network-up.svg"
ROWS, COLUMNS = 40, 80
INIT = ["network", "init", "--peers", "8", "--out", "net", "--port", "17400"]
UP = ["network", "up", "net", "--dataset", "digits"]
CESAR = [sys.executable, "-m", "cesar"]
ERASED = re.compile(rb"(?:\x1b\[1A\x1b\[2K)+|\x1b\[\?25[hl]")
ROUNDS = re.compile(r"│ runs │ +(\d+) │")


def screens(folder: Path) -> list[str]:
    """What the terminal showed, one table after the other."""
    subprocess.run([*CESAR, *INIT], cwd=folder, check=True, capture_output=True)
    screen, terminal = pty.openpty()
    ioctl(screen, TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    process = subprocess.Popen(
        [*CESAR, *UP], cwd=folder, stdout=terminal, stderr=terminal, stdin=subprocess.DEVNULL, env=environment
    )
    os.close(terminal)
    seen = b""
    try:
        while chunk := os.read(screen, 65536):
            seen += chunk
    except OSError:  # the other end is closed: the command has ended
        pass
    if process.wait() != 0:
        raise SystemExit(seen.decode(errors="replace"))
    parts = (part.decode().replace("\r", "") for part in ERASED.split(seen))
    return [part for part in parts if "peer" in part]


def middle(shown: list[str]) -> str:
    """The table when everybody is about half way: the first in which all eight have thirty rounds."""
    for table in shown:
        rounds = [int(number) for number in ROUNDS.findall(Text.from_ansi(table).plain)]
        if len(rounds) == 8 and min(rounds) >= 30:
            return table
    raise SystemExit("no table shows all peers at work")


def draw(table: str) -> str:
    """The table as a picture; it refers to no font elsewhere."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(f"[bold green]$[/] cesar {' '.join(UP)}")
    console.print(Text.from_ansi(table.strip("\n")))
    picture = console.export_svg(title="cesar network up", theme=MONOKAI, unique_id="up")
    return re.sub(r"\s*@font-face \{.*?\}\n", "\n", picture, flags=re.DOTALL)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        OUT.write_text(draw(middle(screens(Path(place)))), encoding="utf-8")
