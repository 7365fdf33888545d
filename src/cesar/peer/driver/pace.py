"""How long to wait for the others: as long as rounds have lately taken, with room to spare."""

from __future__ import annotations

import statistics
from collections import deque

from cesar.protocol import Deadlines

PATIENCE = 4.0
"""A round may take this many times the median of the last ones before the missing are left behind."""

_PHASES = (0.6, 0.8, 1.0)
"""Ends of announce, relay and share: most of the time is for those whose local training takes longer."""


class Pace:
    """Deadlines that follow measured times; between floor and ceiling, in seconds. The clock is the driver's."""

    def __init__(self, floor: float, ceiling: float) -> None:
        self._floor, self._ceiling = floor, ceiling
        self._taken: deque[float] = deque(maxlen=15)
        self._ended = self._heard = 0.0
        self._late = False

    @property
    def limit(self) -> float:
        """The longest that the next round can take; the ceiling until something was measured."""
        if not self._taken:
            return self._ceiling
        return min(max(PATIENCE * statistics.median(self._taken), self._floor), self._ceiling)

    def start(self, now: float) -> None:
        """Local training begins for the first time."""
        self._ended = now

    def begin(self, now: float) -> Deadlines:
        """A round begins; says when its phases end."""
        self._heard, self._late = now, False
        announce, relay, share = (now + part * self.limit for part in _PHASES)
        return Deadlines(announce=announce, relay=relay, share=share)

    def heard(self, now: float) -> None:
        """A frame has come, perhaps before the round began."""
        self._heard = max(self._heard, now)

    def late(self) -> None:
        """Somebody who is connected kept this peer waiting until a deadline."""
        self._late = True

    def end(self, now: float, *, alone: bool) -> None:
        """A round has ended; if it was `alone` and nobody was late, there was nobody to measure."""
        if self._late:
            self.measured(now - self._ended)
        elif not alone:
            self.measured(self._heard - self._ended)
        self._ended = now

    def measured(self, seconds: float) -> None:
        """Local training, and averaging until the last frame that came; or all of it if somebody who is connected was
        late. One who hangs is late once, which does not move a median; deadlines that are too short are many times.
        """
        self._taken.append(seconds)
