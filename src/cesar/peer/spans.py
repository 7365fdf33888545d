"""When a peer does what, for a picture of a round: kinds of work and times, and nothing of what was worked on.

Nobody keeps spans unless somebody asks for them with `keep`; then all peers of the process add to one list.
"""

from __future__ import annotations

import time
from enum import StrEnum
from typing import NamedTuple


class Work(StrEnum):
    """What a peer can be doing; several at once, on its threads and links."""

    WAIT = "wait"
    ANNOUNCE = "announce"
    MAKE = "make"
    SEND = "send"
    RECEIVE = "receive"
    ADD = "add"
    DISK = "write to disk"


class Span(NamedTuple):
    """From when to when, by `time.monotonic`."""

    work: Work
    begin: float
    end: float


begin = time.monotonic
"""When something begins; to be handed to `end`."""

_kept: list[Span] | None = None


def keep() -> list[Span]:
    """From now on spans go to this list, which grows with every round."""
    global _kept  # noqa: PLW0603  (a hook of the process, as those of `logging` are)
    _kept = []
    return _kept


def end(work: Work, begun: float) -> None:
    """Something has ended."""
    if _kept is not None:
        _kept.append(Span(work, begun, time.monotonic()))
