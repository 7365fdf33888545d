"""The surface of a round, and its course from phase to phase: what every method has in common."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from cesar.base.errors import RemoteProtocolError
from cesar.base.types import NodeId
from cesar.protocol.events import AggregateReady, Deadlines, Outbound
from cesar.protocol.wire import Kind


class Phase(IntEnum):
    ANNOUNCE = 1
    RELAY = 2
    SHARE = 3
    DONE = 4


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a round's law: whom a phase still waits for, and what its end brings about."""

    awaits: Callable[[], AbstractSet[NodeId]]
    then: Callable[[], None]


class Course:
    """Where a round stands. A phase ends when it waits for nobody any more, or at its deadline.

    Args:
        law: the phases that this kind of round has.
    """

    def __init__(self, law: Mapping[Phase, Step], deadlines: Deadlines) -> None:
        self._law, self._deadlines = law, deadlines
        self.phase = self._first = min(law)

    @property
    def deadline(self) -> float | None:
        """When the current phase ends at the latest; None when the round is over."""
        match self.phase:
            case Phase.ANNOUNCE:
                return self._deadlines.announce
            case Phase.RELAY:
                return self._deadlines.relay
            case Phase.SHARE:
                return self._deadlines.share
            case _:
                return None

    @property
    def awaiting(self) -> frozenset[NodeId]:
        """Whose frames the current phase waits for; empty when the round is over."""
        return frozenset() if self.finished else frozenset(self._law[self.phase].awaits())

    @property
    def joinable(self) -> bool:
        """Whether a node that comes only now can still take part."""
        return self.phase is self._first

    @property
    def finished(self) -> bool:
        """Whether nothing more is awaited and everything to be sent is queued."""
        return self.phase is Phase.DONE

    def advance(self) -> None:
        """End every phase that has all it waits for."""
        while self.phase is not Phase.DONE and not self._law[self.phase].awaits():
            self._end_phase()

    def tick(self, now: float) -> None:
        """End the phases whose time is over, one after the other."""
        while (deadline := self.deadline) is not None and now >= deadline:
            self._end_phase()
            self.advance()

    def forget(self) -> None:
        """The round is over: let go of the law, whose steps hold the round that holds this course."""
        self._law, self.phase = {}, Phase.DONE

    def _end_phase(self) -> None:
        step = self._law[self.phase]
        self.phase = min((phase for phase in self._law if phase > self.phase), default=Phase.DONE)
        step.then()
        if self.finished:
            self._law = {}  # its steps refer to the round and the round to them: now both can go when the round is dropped


class Outbox:
    """Frames that are made when they are pulled, so that only one is in memory at a time."""

    def __init__(self) -> None:
        self._makers: deque[tuple[NodeId | None, Callable[[], Outbound | None]]] = deque()
        self.asked_by: NodeId | None = None

    def add(self, make: Callable[[], Outbound | None], asked_by: NodeId | None = None) -> None:
        """Queue a frame; `make` returns None if it turns out that nothing may be sent.

        Args:
            asked_by: whose words the frame answers, if it rests on any.
        """
        self._makers.append((asked_by, make))

    def pull(self) -> Outbound | None:
        """Make the next frame to send; if that fails, the frame is gone and `asked_by` says whom it was to answer."""
        while self._makers:
            self.asked_by, make = self._makers.popleft()
            if (out := make()) is not None:
                return out
        return None

    def forget(self) -> None:
        """Make none of the frames that were not pulled."""
        self._makers.clear()


class Round(Protocol):
    """One attempt at one round, of one method."""

    course: Course
    outbox: Outbox

    def handle(self, sender: NodeId, kind: Kind, body: memoryview) -> None:
        """Take in a frame of this round; raises `RemoteProtocolError` before anything changes."""

    def aggregate(self) -> AggregateReady:
        """The result, once finished."""

    def rejected(self) -> list[RemoteProtocolError]:
        """Frames that were held back and turned out to be bad; each is given once."""
