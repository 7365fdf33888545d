"""What commands that start long work do first: see that what they need is installed, and end in order at a signal."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
from collections.abc import Iterator
from types import FrameType

from cesar.base.errors import ConfigError


def need(extra: str, *modules: str) -> None:
    """Say what to install, before something is half done."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise ConfigError(
                f"this command needs {module}; in a copy of cesar's repository: pip install '.[{extra}]'"
            )


@contextlib.contextmanager
def terminated() -> Iterator[None]:
    """While this lasts, SIGTERM and SIGINT end the program as Ctrl-C does, also where a shell had SIGINT ignored."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
