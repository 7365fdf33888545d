"""A real browser that shows a page: what it makes of it, and whether it complains."""

import shutil
import subprocess
from pathlib import Path

import pytest

QUIET = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
SWITCHES = f"{QUIET} --enable-logging=stderr --virtual-time-budget=20000 --dump-dom"


def chromium() -> str:
    """Where it is; a machine without it skips the test."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium on this machine; the Debian package is called chromium")
    return found


def browse(page: Path, folder: Path, *switches: str) -> str:
    """The page as it stands after a browser has drawn it; whatever its console says is an error.

    Args:
        folder: a place for the browser's profile.
    """
    command = [
        chromium(),
        *SWITCHES.split(),
        f"--user-data-dir={folder / 'profile'}",
        *switches,
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert complaints == []
    return done.stdout


def screen(*, dark: bool) -> str:
    """The switch for a light or a dark screen."""
    return f"--blink-settings=preferredColorScheme={int(not dark)}"
