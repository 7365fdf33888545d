"""How long to wait for the others: as long as rounds have lately taken, with room to spare."""

from __future__ import annotations

import statistics
from collections import deque

from cesar.protocol import Deadlines

PATIENCE = 4.0
"""A round may take so many times the median of the last ones before the missing are left behind."""

_PHASES = (0.6, 0.8, 1.0)
"""Ends of announce, relay and share: most of the time is for those whose local training takes longer."""


class Pace:
    """Deadlines that follow measured times; between floor and ceiling, in seconds."""

    def __init__(self, floor: float, ceiling: float) -> None:
        self._floor, self._ceiling = floor, ceiling
        self._taken: deque[float] = deque(maxlen=15)

    @property
    def limit(self) -> float:
        """The longest that the next round can take; the ceiling until something was measured."""
        if not self._taken:
            return self._ceiling
        return min(max(PATIENCE * statistics.median(self._taken), self._floor), self._ceiling)

    def deadlines(self, begin: float) -> Deadlines:
        announce, relay, share = (begin + part * self.limit for part in _PHASES)
        return Deadlines(announce=announce, relay=relay, share=share)

    def measured(self, seconds: float) -> None:
        """Local training, and averaging until the last frame that came; or all of it if somebody who is connected was
        late. One who hangs is late once, which does not move a median; deadlines that are too short are many times.
        """
        self._taken.append(seconds)
