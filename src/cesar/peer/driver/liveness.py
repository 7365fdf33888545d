"""Who is there, and whom a round waits for. No socket and no clock: links and neighbours tell, the driver asks.

A round waits for a neighbour until the deadline, except when that neighbour will surely not send: its link is down,
it is there for something else, it has gone on to a later round, or it kept us waiting in vain last time and has not
been heard since. So a dead peer costs nothing, and a hanging one costs one deadline. If all that are there kept us
waiting, it is this peer that is out of step: it waits for them again instead of running ahead alone.

Rounds only go up, as long as the roster is the same, so one neighbour that says it is ahead, by however little, must not take
this peer away from the others, whose rounds it would skip. Where neighbours are a round or two apart, it goes where more than
half of them are. Two that are far ahead are followed. A single one is followed by a peer that has averaged with nobody for a while,
as far as rounds can have gone on since.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

from cesar.base.types import NodeId
from cesar.peer.net.messages import TRAINS, Hello, Status

NEAR = 2
"""Neighbours run ahead of one another by this many rounds. This peer goes that far with more than half of them; further with two."""

LONELY, FORSAKEN = 3, 20
"""Rounds with nobody, after which a single neighbour is followed as far as it can have come meanwhile. The larger number holds
if two others are where this peer is: their groups may wait for somebody.
"""


class Standing(Enum):
    """What a neighbour is to a round."""

    DOWN = "there is no link"
    APART = "it is there for something else, settles while others train, or has another roster: its session is another"
    AHEAD = "it has gone on to a later round"
    SUSPECTED = "it kept this peer waiting, and has not been heard since"
    AWAITED = "its frames are on their way"


@dataclass(slots=True)
class Neighbour:
    """What is known of one neighbour at this moment.

    Attributes:
        purpose, roster, release, satisfied: as it said last, see `messages.Hello`.
        clock: by how many seconds its clock is ahead of this one's.
        suspected: it kept this peer waiting, and nobody waits for it until it is heard again.
        refusals: frames of this conversation that an honest neighbour would not have sent.
        conversations: how many there were; frames that were on their way when one ended are lost.
    """

    up: bool = False
    status: Status = field(default_factory=Status)
    purpose: str = ""
    roster: int = 0
    release: str = ""
    clock: float = 0.0
    satisfied: bool = False
    suspected: bool = False
    refusals: int = 0
    conversations: int = 0
    last_error: str = ""

    def there_for(self, purpose: str) -> bool:
        """Whether it is connected, for the same purpose: one that is being checked does not train."""
        return self.up and self.purpose == purpose


def _known(neighbours: dict[NodeId, Neighbour], peer: NodeId) -> Neighbour:
    """What is known of a neighbour; of one that a newer roster does not have, nothing is kept."""
    return neighbours.get(peer) or Neighbour()


class Liveness:
    """The neighbours of one peer.

    Args:
        purpose: what this peer is there for.
        mine: where it stands.
    """

    def __init__(self, purpose: str, mine: Status, neighbours: Iterable[NodeId], roster: int) -> None:
        self.purpose, self.mine = purpose, mine
        self._alone = 0  # rounds with nobody, in a row
        self._roster = roster
        self.neighbours = {peer: Neighbour() for peer in neighbours}

    def adopt(self, neighbours: Iterable[NodeId], roster: int) -> None:
        """Another version of the roster holds from now on, and rounds begin anew; those who stay are known already."""
        self._roster = roster
        self.mine = replace(self.mine, current=0, joinable=0)
        self.neighbours = {peer: self.neighbours.get(peer, Neighbour()) for peer in neighbours}

    # ── what happens ────────────────────────────────────────────────────────────────────────────────────

    def greeted(self, peer: NodeId, hello: Hello, now: float) -> None:
        """It has said who it is; `now` is the time of day here, in seconds since 1970."""
        known = _known(self.neighbours, peer)
        known.status, known.purpose, known.roster = hello.status, hello.purpose, hello.roster
        known.release, known.satisfied = hello.release, hello.satisfied
        known.clock, known.last_error = hello.time - now, ""

    def connected(self, peer: NodeId) -> None:
        """A conversation begins: what happened in the last one is forgiven."""
        known = _known(self.neighbours, peer)
        known.up, known.refusals, known.suspected = True, 0, False
        known.conversations += 1

    def disconnected(self, peer: NodeId) -> None:
        """The link is down."""
        _known(self.neighbours, peer).up = False

    def failed(self, peer: NodeId, why: str) -> None:
        """A link could not be made, or was ended for this reason."""
        _known(self.neighbours, peer).last_error = why

    def status_came(self, peer: NodeId, status: Status) -> None:
        """It says where it stands; if that is where this peer is, it is alive."""
        known = _known(self.neighbours, peer)
        known.status = status
        if status.current >= self.mine.current:
            known.suspected = False

    def heard(self, peer: NodeId) -> None:
        """A frame of use has come from it."""
        _known(self.neighbours, peer).suspected = False

    def blamed(self, peer: NodeId, why: str, *, harmless: bool) -> int:
        """It sent a frame that was refused; how many of this conversation an honest neighbour would not have sent."""
        known = _known(self.neighbours, peer)
        known.last_error = why
        known.refusals += not harmless
        return known.refusals

    def suspect(self, peer: NodeId) -> bool:
        """It kept this peer waiting in vain; whether that is news."""
        known = _known(self.neighbours, peer)
        news, known.suspected = not known.suspected, True
        return news

    def ended(self, contributors: Collection[NodeId]) -> None:
        """A round of this peer is over, with these neighbours' shares."""
        self._alone = 0 if contributors else self._alone + 1

    def clock(self) -> float:
        """By how many seconds most neighbours' clocks are ahead of this machine's, by their last greetings; 0 as long as fewer
        than half have greeted.
        """
        offsets = [known.clock for known in self.neighbours.values() if known.release]
        return statistics.median_low(offsets) if 2 * len(offsets) > len(self.neighbours) else 0.0

    # ── what follows ────────────────────────────────────────────────────────────────────────────────────

    def standing(self, peer: NodeId, round_: int) -> Standing:
        known = _known(self.neighbours, peer)
        if not known.up:
            return Standing.DOWN
        if (
            known.purpose != self.purpose
            or known.roster != self._roster
            or not self.mine.averages_with(known.status)
        ):
            return Standing.APART
        if known.status.current > round_:
            return Standing.AHEAD
        return Standing.SUSPECTED if known.suspected else Standing.AWAITED

    def gone(self, round_: int) -> frozenset[NodeId]:
        """Neighbours that will surely send nothing of use in this round, or are not worth waiting for."""
        standing = {peer: self.standing(peer, round_) for peer in self.neighbours}
        # If all who are there kept this peer waiting last time, it is this peer that is out of step. Then it waits for them.
        worth = Standing.AWAITED if Standing.AWAITED in standing.values() else Standing.SUSPECTED
        return frozenset(peer for peer, what in standing.items() if what is not worth)

    @property
    def up(self) -> frozenset[NodeId]:
        return frozenset(peer for peer, known in self.neighbours.items() if known.up)

    def takes_part(self, peer: NodeId) -> bool:
        """Whether a neighbour is there and does the same thing: one that trains does not settle."""
        known = _known(self.neighbours, peer)
        return known.there_for(self.purpose) and self.mine.averages_with(known.status)

    @property
    def training(self) -> frozenset[NodeId]:
        """Neighbours that are there and have not come to settle yet."""
        return frozenset(
            peer
            for peer, known in self.neighbours.items()
            if known.there_for(self.purpose) and known.status.mode == TRAINS
        )

    @property
    def company(self) -> frozenset[NodeId]:
        """Neighbours that are there and do what this peer does."""
        return frozenset(peer for peer in self.neighbours if self.takes_part(peer))

    def next_round(self, least: int, furthest: int) -> int:
        """The round to begin: never one below `least`, and none to which a single neighbour could lead this peer away.

        With `least` 10 and NEAR 2:

            neighbours say 11, 11, 10     11   more than half of them are there
            neighbours say 12, 10, 10     10   one runs ahead, and the others would be left behind
            neighbours say 900, 900, 10   900  this peer was away: two that agree are followed however far they are
            neighbours say 900, 10, 10    10   one alone is not; it may lie, and rounds never go back
            only one neighbour, says 900  10   at first; after `LONELY` rounds with nobody 900, if that is not beyond `furthest`

        In a check the furthest round is taken: nobody trains, and no number is remembered.

        Args:
            furthest: no network can have come further since this peer was last in step.
        """
        said = sorted((known.status.joinable for known in self._fellows()), reverse=True)
        # `half` is as far as more than half of them have come: of four the third largest, of three the second, of two the smaller
        # one. `two` is as far as two of them have come.
        half, two = [*said, 0][len(said) // 2], [*said, 0, 0][1]
        # `most` is how far this peer may go at all; it then begins the latest round up to there in which somebody can be joined.
        most = least
        if half <= least + NEAR:
            most = max(least, half)
        if two > least + NEAR:
            most = two
        if self.purpose == "check":
            most = max([*said, most])
        elif self._alone >= (LONELY if sum(round_ <= least + NEAR for round_ in said) < 2 else FORSAKEN):
            most = max(most, furthest)
        return max(least, *(round_ for round_ in [*said, 0] if round_ <= most))

    def still_in(self, round_: int) -> bool:
        """Whether somebody who is awaited at all has this round to end."""
        return any(known.status.current == round_ and not known.suspected for known in self._fellows())

    def _fellows(self) -> list[Neighbour]:
        """Neighbours that are there for the same thing and count rounds as this peer does: under the same roster."""
        return [
            known
            for known in self.neighbours.values()
            if known.there_for(self.purpose) and known.roster == self._roster
        ]
