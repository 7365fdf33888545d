"""What is known of a whole network at a glance: the state behind the live page, without any I/O.

What peers say comes from other sites, so it is taken only if it has the form of a status, and is cut to a size that a page
can show. Nothing of it is ever trusted to be text that a browser may interpret: the page writes it as text.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError

MOST_POINTS = 300
"""A curve that has more loses every second point; a screen shows no more anyway."""

MOST_FIGURES = 24
SILENT_SECONDS = 5.0
"""A peer that was not heard for so long does not answer."""

_T = TypeVar("_T")


def _finite(value: object) -> object:
    """What is no number is a gap."""
    return value if not isinstance(value, float) or math.isfinite(value) else None


def _first_few(values: dict[str, _T]) -> dict[str, _T]:
    return dict(list(values.items())[:MOST_FIGURES])


_Text = Annotated[str, AfterValidator(lambda text: text[:300])]
_Count = Annotated[int, Field(ge=0, lt=2**53)]
_Number = Annotated[float | None, BeforeValidator(_finite)]


class _Near(BaseModel):
    id: _Count
    name: _Text = ""
    up: bool
    suspected: bool = False
    last_error: _Text = ""


class _Group(BaseModel):
    words: _Text = ""
    waits: bool = False
    told: _Text = ""


class Said(BaseModel):
    """A peer's status.json, as far as the page shows it."""

    node: _Count
    name: _Text
    network: _Text
    roster: _Count
    round: _Count
    rounds_done: _Count
    settling: bool = False
    shared: _Number = None
    seconds: _Number = None
    dropouts: _Count = 0
    bytes: Annotated[dict[_Text, _Count], AfterValidator(_first_few)]
    figures: Annotated[dict[_Text, _Number], AfterValidator(_first_few)]
    groups: Annotated[list[_Group], Field(max_length=1000)] = []
    neighbours: Annotated[list[_Near], Field(max_length=1000)]


@dataclass(slots=True)
class Curve:
    """One figure of one peer over the rounds; a value is kept when it changes."""

    points: list[tuple[int, float]] = field(default_factory=list)

    def add(self, round_: int, value: float) -> None:
        if self.points and round_ < self.points[-1][0]:
            self.points.clear()  # it began again
        if self.points and round_ == self.points[-1][0]:
            self.points[-1] = (round_, value)
        elif not self.points or value != self.points[-1][1]:
            self.points.append((round_, value))
        if len(self.points) > MOST_POINTS:
            self.points = [*self.points[:-1:2], self.points[-1]]


@dataclass(slots=True)
class _Site:
    """One peer that is looked at.

    Attributes:
        state: a word for how its process ended, where that is known; else it follows from what is heard.
        why: what went wrong when it was asked last.
        heard: when it answered last.
    """

    where: str
    state: str = ""
    why: str = ""
    said: Said | None = None
    heard: float = -math.inf
    curves: dict[str, Curve] = field(default_factory=dict)

    def in_a_word(self, now: float) -> str:
        if self.state:
            return self.state
        if self.said is None:
            return "no answer" if self.why else "starting"
        if now - self.heard > SILENT_SECONDS:
            return "no answer"
        return "settling" if self.said.settling else "training"


class Board:
    """All peers that are looked at; may be told and asked from several threads.

    Args:
        places: where each peer's status page is; in this order they are shown.
    """

    def __init__(self, places: list[str]) -> None:
        self._sites = {where: _Site(where) for where in places}
        self._lock = threading.Lock()

    def hear(self, where: str, said: object, now: float) -> None:
        """What a peer has answered."""
        try:
            heard = Said.model_validate(said)
        except ValidationError as error:
            at = ".".join(map(str, error.errors()[0]["loc"])) or "all of it"
            self.miss(where, f"this is not the status of a peer of this release: {at[:60]}")
            return
        with self._lock:
            site = self._sites[where]
            site.said, site.heard, site.why = heard, now, ""
            figures = {**heard.figures, "bytes sent": float(sum(heard.bytes.values()))}
            for name, value in figures.items():
                if (
                    value is not None
                    and heard.rounds_done
                    and (name in site.curves or len(site.curves) <= MOST_FIGURES)
                ):
                    site.curves.setdefault(name, Curve()).add(heard.round, value)

    def miss(self, where: str, why: str) -> None:
        """A peer could not be asked."""
        with self._lock:
            self._sites[where].why = why[:300]

    def end(self, where: str, state: str) -> None:
        """A peer's process is known to be in this state; empty if that follows from what it says."""
        with self._lock:
            self._sites[where].state = state

    def picture(self, now: float) -> dict[str, Any]:
        """All that the page shows, for JSON."""
        with self._lock:
            sites = list(self._sites.values())
            first = next((site.said for site in sites if site.said is not None), None)
            return {
                "network": "" if first is None else first.network,
                "peers": [_peer(site, now, first) for site in sites],
                "others": _others(sites),
                "links": _links(sites, now),
            }


def _peer(site: _Site, now: float, first: Said | None) -> dict[str, Any]:
    fields: dict[str, Any] = {"where": site.where, "state": site.in_a_word(now), "why": site.why}
    if site.said is None or first is None:
        return fields
    said = site.said
    if said.network != first.network:
        fields["why"] = f"this is a peer of another network, {said.network}"
    return {
        **fields,
        **said.model_dump(exclude={"neighbours", "bytes", "network"}),
        "bytes": sum(said.bytes.values()),
        "near": len(said.neighbours),
        "up": sum(near.up for near in said.neighbours),
        "errors": [
            f"{near.id}: {near.last_error}" for near in said.neighbours if near.last_error and not near.up
        ],
        "curves": {name: curve.points for name, curve in site.curves.items()},
    }


def _others(sites: list[_Site]) -> list[dict[str, Any]]:
    """Neighbours of those who are looked at, who are not looked at themselves."""
    seen = {site.said.node for site in sites if site.said is not None}
    names = {near.id: near.name for site in sites if site.said is not None for near in site.said.neighbours}
    return [{"node": node, "name": name} for node, name in sorted(names.items()) if node not in seen]


def _links(sites: list[_Site], now: float) -> list[dict[str, Any]]:
    """Each pair of neighbours once; a link is up if all who can tell say so, and None if nobody can."""
    told: dict[tuple[int, int], list[bool]] = {}
    for site in sites:
        if site.said is None:
            continue
        there = site.in_a_word(now) in {"training", "settling"}
        for near in site.said.neighbours:
            pair = (min(site.said.node, near.id), max(site.said.node, near.id))
            told.setdefault(pair, []).extend([near.up] if there else [])
    return [{"ends": pair, "up": all(says) if says else None} for pair, says in sorted(told.items())]
