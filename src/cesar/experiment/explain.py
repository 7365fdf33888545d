"""One secure round that a person can follow: what each node learned, what it saw, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from cesar import graphs
from cesar.crypto.keys import RoundId
from cesar.grouping import Group
from cesar.methods import DPSGD, Cesar, Method, SecureAggregation
from cesar.packing import unpack
from cesar.seeds import SeedTree
from cesar.sim import CrashPoint, Ensemble, RoundResult
from cesar.sparsify import CoordinatedSubsampling, RandomSubsampling, TopK
from cesar.theory import required_alpha, required_union_alpha
from cesar.types import NodeId
from cesar.wire import Frame, Kind, Share, read_header

NODES, DEGREE, SIZE, SHARE, GROUP = 8, 4, 20_000, 0.30, 2
BITS = 32  # words that add up to the last digit that is shown
SAMPLER = RandomSubsampling(SHARE)
SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What the round changed for one node.

    Attributes:
        groups: the neighbours whose sums it sees.
        averaged: parameters that are now a mean with neighbours.
        mean_group: how many models are in such a mean, with its own.
        largest_error: largest difference to the same mean computed in the clear.
        sent: bytes by category.
    """

    node: int
    groups: tuple[Group, ...]
    averaged: int
    mean_group: float
    largest_error: float
    sent: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Glimpse:
    """A few parameters on their way to a receiver.

    Attributes:
        values: what they were, for each member of the group.
        words: what arrived of each member.
        sums: what the receiver can work out from its new model.
    """

    receiver: int
    group: Group
    values: tuple[tuple[float, ...], ...]
    words: tuple[tuple[int, ...], ...]
    sums: tuple[float, ...]


def network() -> tuple[nx.Graph, NDArray[np.float32]]:
    """The demonstration's graph and models."""
    models = SeedTree(1).generator("demo").standard_normal((NODES, SIZE), dtype=np.float32)
    return graphs.numbered(NODES, DEGREE, 1), models


def methods() -> Iterator[tuple[str, Method]]:
    """What is compared: the unprotected baselines, plain secure aggregation, CESAR and fixed groups."""
    alpha = required_alpha(SHARE, DEGREE)
    union = required_union_alpha(SHARE, [GROUP] * (DEGREE // GROUP))
    yield "D-PSGD, all parameters (no privacy)", DPSGD()
    yield "D-PSGD, TopK (no privacy)", DPSGD(sparsifier=TopK(SHARE))
    yield "secure aggregation, all parameters", SecureAggregation()
    yield "CESAR, TopK", Cesar(sparsifier=TopK(alpha))
    yield "CESAR, random subsampling", Cesar(sparsifier=RandomSubsampling(alpha))
    yield "CESAR, coordinated subsampling", Cesar(sparsifier=CoordinatedSubsampling(SHARE))
    yield "groups of two, TopK", Cesar(sparsifier=TopK(union), group_size=GROUP)
    yield "groups of two, random", Cesar(sparsifier=SAMPLER, group_size=GROUP)
    yield "groups of two, random, 32 bits", Cesar(sparsifier=SAMPLER, group_size=GROUP, ring_bits=32)


def secure_round(
    crashes: dict[int, CrashPoint] | None = None,
) -> tuple[RoundResult, list[Learned], Glimpse]:
    """A round in fixed groups with random subsampling, checked against means computed in the clear."""
    graph, models = network()
    shares: dict[tuple[int, int], Frame] = {}

    def watch(sender: NodeId, recipient: NodeId, frame: Frame) -> None:
        if frame.kind is Kind.SHARE:
            shares[sender, recipient] = frame

    method = Cesar(sparsifier=SAMPLER, group_size=GROUP, ring_bits=BITS)
    result = Ensemble(graph, method, SIZE, seed=1).round(models, crashes=crashes, watch=watch)
    attempt = read_header(next(iter(shares.values())).payload)[0].attempt
    gone = frozenset(crashes or ())
    learned = [_learned(models, result, NodeId(node), attempt, gone) for node in range(NODES)]
    return result, learned, _glimpse(graph, models, result, shares, attempt)


def _groups(result: RoundResult, node: NodeId) -> tuple[Group, ...]:
    assert result.groups is not None
    return result.groups[node]


def _positions(result: RoundResult, node: NodeId, attempt: RoundId) -> list[NDArray[np.int32]]:
    """Where each group of a receiver sends, as everybody can work out."""
    groups = _groups(result, node)
    drawn = SAMPLER.in_turns(node, attempt, SIZE, len(groups))
    return [drawn(number).positions() for number in range(len(groups))]


def _learned(
    models: NDArray[np.float32], result: RoundResult, node: NodeId, attempt: RoundId, gone: frozenset[int]
) -> Learned:
    groups = _groups(result, node)
    total, count = models[node].astype(np.float64), np.ones(SIZE, dtype=np.int64)
    for group, positions in zip(groups, _positions(result, node, attempt), strict=True):
        if node not in gone and gone.isdisjoint(group):
            total[positions] += models[list(group)][:, positions].sum(axis=0, dtype=np.float64)
            count[positions] += len(group)
    averaged = count > 1
    return Learned(
        node=node,
        groups=groups,
        averaged=int(averaged.sum()),
        mean_group=float(count[averaged].mean()) if averaged.any() else 1.0,
        largest_error=float(np.abs(result.vectors[node] - total / count).max()),
        sent={category: int(counts[node]) for category, counts in result.bytes.items()},
    )


def _glimpse(
    graph: nx.Graph,
    models: NDArray[np.float32],
    result: RoundResult,
    shares: dict[tuple[int, int], Frame],
    attempt: RoundId,
) -> Glimpse:
    receiver = NodeId(0)
    group, first = _groups(result, receiver)[0], _positions(result, receiver, attempt)[0][:SHOWN]
    view = [NodeId(node) for node in sorted(graph[receiver])]
    words = []
    for member in group:
        frame = shares.get((member, receiver))
        if frame is None:  # it crashed
            continue
        share = Share.decode(read_header(frame.payload)[1], view, explicit=False)
        words.append(tuple(unpack(share.values, BITS, frame.parameters)[:SHOWN].tolist()))
    known = result.vectors[receiver].astype(np.float64) * (len(group) + 1) - models[receiver]
    return Glimpse(
        receiver=receiver,
        group=group,
        values=tuple(tuple(models[member][first].tolist()) for member in group),
        words=tuple(words),
        sums=tuple(known[first].tolist()),
    )


def compare() -> Iterator[tuple[str, RoundResult]]:
    """One round of each method on the same models."""
    graph, models = network()
    for name, method in methods():
        yield name, Ensemble(graph, method, SIZE, seed=1).round(models)
