"""Waiting for what must come true in another task or process: the only place where tests sleep."""

import asyncio
import time
from collections.abc import Callable


async def until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Wait in an event loop."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  (conditions of all kinds)
            await asyncio.sleep(0.02)


def wait_until(
    condition: Callable[[], object], seconds: float = 30, why: Callable[[], str] = lambda: "waited in vain"
) -> None:
    """Wait in a thread; `why` says what is known if it is in vain."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, why()
        time.sleep(0.05)
