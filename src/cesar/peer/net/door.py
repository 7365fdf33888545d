"""The door of a peer: who knocks too often, or was refused before, waits longer each time and is not written about each time.

TLS admits everybody whom the authority has ever signed: removed peers, peers that are no neighbours, neighbours that lie. None of them gets
further than the door, but every stream costs a little time and a line in the log, and they can open thousands a second. So
an answer to the same certificate is held back, twice as long every time, and a line is written the first, second, fourth, eighth … time.
A connection carries few streams at once, so held answers are what a flood waits for. New connections cost a handshake each; their
number is bounded, and their rate is the firewall's business.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

FORGET_SECONDS = 120.0
"""A certificate that was quiet for this time begins anew."""

HOLD = (0.5, 30.0)
"""Seconds for which the second refusal is held back, and at most."""

OFTEN = 60
"""Conversations that a neighbour may begin within `FORGET_SECONDS`: links that flap try less often."""

_MOST = 4096


@dataclass(slots=True)
class _Known:
    last: float
    refused: int = 0
    begun: int = 0


class Door:
    """Remembers certificates for a while.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: OrderedDict[bytes, _Known] = OrderedDict()

    def begins(self, mark: bytes) -> bool:
        """A neighbour wants to talk; False if it has begun too often lately."""
        known = self._of(mark)
        known.begun += 1
        return known.begun <= OFTEN

    def refused(self, mark: bytes) -> tuple[int, float]:
        """Somebody is sent away: for the how many-eth time, and how many seconds the answer is held back."""
        known = self._of(mark)
        known.refused += 1
        first, most = HOLD
        hold = 0.0 if known.refused == 1 else min(most, first * 2.0 ** min(known.refused - 2, 20))
        return known.refused, hold

    def forget(self) -> None:
        """Under another roster everybody begins anew."""
        self._known.clear()

    def _of(self, mark: bytes) -> _Known:
        now = self._clock()
        known = self._known.pop(mark, None)
        if known is None or now - known.last > FORGET_SECONDS:
            known = _Known(now)
        known.last = now
        self._known[mark] = known
        while len(self._known) > _MOST:
            self._known.popitem(last=False)
        return known


def worth_a_line(count: int) -> bool:
    """The first, second, fourth, eighth … time."""
    return count & (count - 1) == 0
