"""A real browser that shows a page: what it makes of it, and whether it complains."""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Self

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


class Browser:
    """A browser that stays open on one page, for pages that change; spoken to over a pair of pipes.

    Attributes:
        complaints: errors and warnings of its console, and what its security policy refused.
    """

    def __init__(self, folder: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        command = [
            chromium(),
            *QUIET.split(),
            f"--user-data-dir={folder / 'profile'}",
            "--remote-debugging-pipe",
        ]
        command += [screen(dark=dark), f"--window-size={width},{height}", "about:blank"]
        # The browser reads descriptor 3 and writes descriptor 4.
        script = f'exec 3<&{to_browser} 4>&{from_browser}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._count, self._session = b"", 0, ""
        self._loaded: set[str] = set()
        self.complaints: list[str] = []
        pages = self._ask("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in pages if target["type"] == "page")
        self._session = self._ask("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")
        self._ask("Page.setLifecycleEventsEnabled", enabled=True)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._ask("Emulation.setDeviceMetricsOverride", **size)

    def _ask(self, method: str, **parameters: object) -> dict[str, Any]:
        self._count += 1
        call = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            call["sessionId"] = self._session
        os.write(self._write, json.dumps(call).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._count:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._read, 1 << 16)
            assert data, "the browser has ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, message: dict[str, Any]) -> None:
        match message:
            case {"method": "Page.lifecycleEvent", "params": {"name": "load", "loaderId": loader}}:
                self._loaded.add(loader)
            case {"method": "Runtime.exceptionThrown", "params": {"exceptionDetails": details}}:
                self.complaints.append(json.dumps(details))
            case {
                "method": "Log.entryAdded",
                "params": {"entry": {"text": text, "level": "error" | "warning"}},
            }:
                self.complaints.append(text)
            case {
                "method": "Runtime.consoleAPICalled",
                "params": {"type": "error" | "warning", "args": words},
            }:
                self.complaints.append(json.dumps(words))

    def open(self, url: str) -> None:
        """Go to a page, and wait until it is there."""
        loader = self._ask("Page.navigate", url=url)["loaderId"]
        while loader not in self._loaded:
            self._note(self._next())

    def value(self, expression: str) -> Any:
        """What JavaScript on the page says, as JSON."""
        answer = self._ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        shot = self._ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)
