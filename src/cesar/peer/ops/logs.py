"""The log of a peer: lines for people, or one JSON object each for machines. Nothing secret is ever logged."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, TextIO

from cesar.peer.trust.foreign import escaped

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class Lines(logging.Formatter):
    """For people: when, how grave, what."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC)
        return f"{when:%Y-%m-%d %H:%M:%S}Z {record.levelname.lower():<7} {_event(record)}"


class JsonLines(logging.Formatter):
    """For machines: one object per line, with time, level, event, node, round, and what else a line carries."""

    def __init__(self, node: int, current: Callable[[], int | None]) -> None:
        super().__init__()
        self._node, self._current = node, current

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": _event(record),
            "node": self._node,
            "round": self._current(),
        }
        extra = {name: value for name, value in vars(record).items() if name not in _PLAIN}
        return json.dumps({**fields, **extra}, default=str)


def _event(record: logging.LogRecord) -> str:
    """The message on one line, whatever others have put into it."""
    text = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        text += f": {record.exc_info[1]!r}"
    return escaped(text)


@contextlib.contextmanager
def written(
    stream: TextIO, node: int, current: Callable[[], int | None], *, as_json: bool
) -> Iterator[logging.Logger]:
    """While this lasts, what cesar logs goes to the stream."""
    logger = logging.getLogger("cesar")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines(node, current) if as_json else Lines())
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield logger
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
