"""What a round must give, worked out from the rules alone: plain numpy, and nothing of the engine.

A round is replayed as facts: whose announcement reached whom, which group each receiver formed, which
partners each sender knows, what it therefore sends, and which masks meet their opposites. There are no
bytes, no keys and no order here. `lost` names the frames that did not take effect, as (kind, sender,
recipient) with kind "announce", "relay" or "share": whether a frame never left, got lost or came too late
makes no difference to the outcome.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import networkx as nx
import numpy as np
from numpy.typing import NDArray

Frames = frozenset[tuple[str, int, int]]
KINDS = ("announce", "relay", "share")
POINTS = ("before_announce", "after_announce", "after_coordination", "during_share")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What decides a masked round.

    Attributes:
        s: the masks that a parameter must carry.
        paper: fixed decimals and explicit indices: a group is all neighbours, and nothing is relayed.
    """

    s: int = 1
    coordination: str = "relay"
    dropout: str = "parameter"
    paper: bool = False
    weights: str = "arrived"
    session: bytes = bytes(16)
    round_: int = 0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What all nodes end up with.

    Attributes:
        vectors: (n, d), the new models.
        counts: (n, d), how many values were averaged with the own one.
        lost: (n,), parameters at which a mask did not cancel.
        contributors: whose shares each node used.
        sent: (sender, receiver) → how many values the share carries, for every share that was made.

    """

    vectors: NDArray[np.float64]
    counts: NDArray[np.int64]
    lost: NDArray[np.int64]
    contributors: list[tuple[int, ...]]
    sent: dict[tuple[int, int], int]


class Exchange:
    """Who learned what of whom in the announce and relay phases."""

    def __init__(self, graph: nx.Graph, rules: Rules, lost: Frames) -> None:
        self.graph, self.rules, self.lost = graph, rules, lost
        self.view = {i: set(graph[i]) for i in graph}
        # In the paper's plain form a receiver never looks at sets, so nobody announces for its sake.
        self.receivers_listen = not rules.paper or rules.dropout == "parameter"

    def announces(self, i: int, to: int) -> bool:
        near = to in self.view[i]
        if self.rules.coordination == "relay":
            return near
        return bool(self.view[i] & self.view[to]) or (near and self.receivers_listen)

    def heard(self, of: int, by: int) -> bool:
        return self.announces(of, by) and ("announce", of, by) not in self.lost

    def relay(self, i: int, j: int) -> int:
        low, high = sorted((i, j))
        common = sorted(self.view[low] & self.view[high])
        label = b"cesar relay" + self.rules.session + struct.pack("<III", self.rules.round_, low, high)
        return common[int.from_bytes(hashlib.sha256(label).digest()[:8], "little") % len(common)]

    def knows(self, i: int, j: int) -> bool:
        """Whether i holds j's fresh seed and j's set, and so can make the mask of the pair."""
        if self.rules.coordination == "direct" or j in self.view[i]:
            return self.heard(j, i)
        x = self.relay(i, j)
        return self.heard(i, x) and self.heard(j, x) and ("relay", x, i) not in self.lost

    def group(self, r: int) -> set[int]:
        """Who takes part in r's sum, as r says."""
        if self.rules.paper:
            return self.view[r]
        return {i for i in self.view[r] if self.heard(i, r)}

    def partners(self, i: int, r: int) -> set[int] | None:
        """P: whose masks i puts on its share for r; None if i sends r nothing."""
        group = self.group(r)
        if i not in group or (not self.rules.paper and ("relay", r, i) in self.lost):
            return None
        return {j for j in group - {i} if self.knows(i, j)}

    def readable(self, r: int, i: int, partners: set[int]) -> bool:
        """Whether r can tell which parameters i's share is about, and check them."""
        return not self.receivers_listen or all(self.heard(j, r) for j in {i, *partners})


def masked_round(
    vectors: NDArray[np.float32],
    graph: nx.Graph,
    selected: NDArray[np.bool_],
    rules: Rules,
    lost: Frames = frozenset(),
) -> Outcome:
    """CESAR and secure aggregation."""
    talk = Exchange(graph, rules, lost)
    models = vectors.astype(np.float64)
    result, counts, gone = models.copy(), np.zeros(models.shape, np.int64), np.zeros(len(models), np.int64)
    contributors: list[tuple[int, ...]] = []
    sent: dict[tuple[int, int], int] = {}
    for r in range(len(models)):
        made = shares_for(talk, r, {j: selected[j] for j in talk.view[r]})
        sent |= {(i, r): int(share.values.sum()) for i, share in made.items()}
        came = {
            i: share
            for i, share in made.items()
            if ("share", i, r) not in lost and talk.readable(r, i, set(share.masks))
        }
        if rules.dropout == "abort" and not complete(came, talk.view[r]):
            came = {}
        spoiled = uncancelled(came, models.shape[1])
        for i, share in came.items():
            usable = share.values & ~spoiled
            result[r] += np.where(usable, models[i], 0)
            counts[r] += usable
        result[r] = mean(models[r], result[r] - models[r], counts[r], len(graph[r]), rules.weights)
        gone[r] = spoiled.sum()
        contributors.append(tuple(came))
    return Outcome(vectors=result, counts=counts, lost=gone, contributors=contributors, sent=sent)


def mean(own, others, count, degree, weights):
    """Of the own value and `count` others that add up to `others`; or of all neighbours, the missing ones as oneself."""
    if weights == "neighbours":
        return (own * (degree + 1 - count) + others) / (degree + 1)
    return (own + others) / (1 + count)


@dataclass(frozen=True)
class Share:
    """Where a share carries a value, and where it carries the mask that it has in common with each partner."""

    values: NDArray[np.bool_]
    masks: dict[int, NDArray[np.bool_]]


def shares_for(talk: Exchange, r: int, chosen: Mapping[int, NDArray[np.bool_]]) -> dict[int, Share]:
    """What the neighbours of r send it: the parameters that at least s of their partners selected too."""
    shares = {}
    for i in sorted(chosen):
        partners = talk.partners(i, r)
        if partners is not None:
            masks = np.sum([chosen[j] for j in partners], axis=0, dtype=int)
            values = chosen[i] & (masks >= talk.rules.s)
            shares[i] = Share(values, {j: values & chosen[j] for j in partners})
    return shares


def complete(came: Mapping[int, Share], everybody: set[int]) -> bool:
    """Whether all shares are there, each with the masks of all others: what "abort" insists on."""
    return came.keys() == everybody and all(
        share.masks.keys() == everybody - {i} for i, share in came.items()
    )


def uncancelled(came: Mapping[int, Share], size: int) -> NDArray[np.bool_]:
    """Where some share carries a mask whose opposite has not come."""
    found, nowhere = np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)
    for i, share in came.items():
        for j, where in share.masks.items():
            found |= where & ~(came[j].masks.get(i, nowhere) if j in came else nowhere)
    return found


def plain_round(
    vectors: NDArray[np.float32],
    graph: nx.Graph,
    selected: NDArray[np.bool_],
    *,
    lost: Frames = frozenset(),
    weights: str = "neighbours",
) -> Outcome:
    """D-PSGD: Metropolis–Hastings weights, where what a neighbour did not send counts as the own value; or the mean of
    what arrived.
    """
    models = vectors.astype(np.float64)
    result, counts = models.copy(), np.zeros(models.shape, np.int64)
    contributors: list[tuple[int, ...]] = []
    sent: dict[tuple[int, int], int] = {}
    for r in range(len(models)):
        arrived = tuple(j for j in sorted(graph[r]) if ("share", j, r) not in lost)
        contributors.append(arrived)
        for j in graph[r]:
            where = selected[j]
            sent[j, r] = int(where.sum())
            if j in arrived:
                weight = 1 / (1 + max(graph.degree[r], graph.degree[j]))
                if weights == "arrived":
                    result[r] += np.where(where, models[j], 0)
                else:
                    result[r] += np.where(where, weight * (models[j] - models[r]), 0)
                counts[r] += where
        if weights == "arrived":
            result[r] /= 1 + counts[r]
    gone = np.zeros(len(models), np.int64)
    return Outcome(vectors=result, counts=counts, lost=gone, contributors=contributors, sent=sent)


def crash_losses(graph: nx.Graph, crashes: Mapping[int, str], halves: Mapping[int, set[int]]) -> Frames:
    """The frames that do not leave their senders. `halves`: who still gets a share of a node that
    crashes during the share phase.
    """
    survives = {
        "before_announce": (),
        "after_announce": ("announce",),
        "after_coordination": ("announce", "relay"),
        "during_share": ("announce", "relay"),
    }
    return frozenset(
        (kind, i, j)
        for i, point in crashes.items()
        for kind in KINDS
        if kind not in survives[point]
        for j in graph
        if not (point == "during_share" and j in halves[i])
    )
