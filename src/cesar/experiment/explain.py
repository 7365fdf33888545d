"""One secure round that a person can follow: what each node learned, what it saw, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from cesar import graphs
from cesar.methods import DPSGD, Cesar, Method, SecureAggregation
from cesar.ring import unpack
from cesar.seeds import SeedTree
from cesar.sim import CrashPoint, Ensemble, RoundResult
from cesar.sparsify import CoordinatedSubsampling, RandomSubsampling, TopK
from cesar.theory import required_alpha
from cesar.types import NodeId
from cesar.wire import Frame, Kind, Share, read_header

NODES, DEGREE, SIZE, SHARE = 8, 4, 20_000, 0.30


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What the round changed for one node.

    Attributes:
        averaged: parameters that are now a mean with neighbours.
        mean_group: how many models are in such a mean, with its own.
        largest_error: largest difference to the same mean computed in the clear.
        sent: bytes by category.
    """

    node: int
    neighbours: tuple[int, ...]
    averaged: int
    mean_group: float
    largest_error: float
    sent: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Glimpse:
    """One parameter on its way: what it was, and what the receiver got to see."""

    sender: int
    receiver: int
    values: tuple[float, ...]
    words: tuple[int, ...]


def network() -> tuple[nx.Graph, NDArray[np.float32]]:
    """The demonstration's graph and models."""
    models = SeedTree(1).generator("demo").standard_normal((NODES, SIZE), dtype=np.float32)
    return graphs.numbered(NODES, DEGREE, 1), models


def methods() -> Iterator[tuple[str, Method]]:
    """What is compared: the unprotected baselines, plain secure aggregation and CESAR."""
    alpha = required_alpha(SHARE, DEGREE)
    yield "D-PSGD, all parameters (no privacy)", DPSGD()
    yield "D-PSGD, TopK (no privacy)", DPSGD(sparsifier=TopK(SHARE))
    yield "secure aggregation, all parameters", SecureAggregation()
    yield "CESAR, TopK", Cesar(sparsifier=TopK(alpha))
    yield "CESAR, random subsampling", Cesar(sparsifier=RandomSubsampling(alpha))
    yield "CESAR, coordinated subsampling", Cesar(sparsifier=CoordinatedSubsampling(SHARE))
    yield "CESAR, random, 16-bit ring", Cesar(sparsifier=RandomSubsampling(alpha), ring_bits=16)


def secure_round(
    crashes: dict[int, CrashPoint] | None = None,
) -> tuple[RoundResult, list[Learned], Glimpse]:
    """A round of CESAR with random subsampling, checked against means computed in the clear."""
    graph, models = network()
    shares: dict[tuple[int, int], Frame] = {}

    def watch(sender: NodeId, recipient: NodeId, frame: Frame) -> None:
        if frame.kind is Kind.SHARE:
            shares[sender, recipient] = frame

    method = Cesar(sparsifier=RandomSubsampling(required_alpha(SHARE, DEGREE)))
    result = Ensemble(graph, method, SIZE, seed=1).round(models, crashes=crashes, watch=watch)
    learned = [_learned(graph, models, result, node) for node in range(NODES)]
    return result, learned, _glimpse(graph, models, result, shares)


def _in_the_clear(
    graph: nx.Graph, models: NDArray[np.float32], result: RoundResult, node: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The mean that the node should have, where at least two neighbours selected a parameter."""
    neighbours = sorted(graph[node])
    chosen = result.selected[neighbours]
    count = np.where(chosen.sum(axis=0) >= 2, chosen.sum(axis=0), 0)
    total = models[node] + np.where(chosen, models[neighbours].astype(np.float64), 0.0).sum(axis=0)
    return np.where(count > 0, total / (count + 1), models[node]), count


def _learned(graph: nx.Graph, models: NDArray[np.float32], result: RoundResult, node: int) -> Learned:
    mean, count = _in_the_clear(graph, models, result, node)
    return Learned(
        node=node,
        neighbours=tuple(sorted(graph[node])),
        averaged=int((result.vectors[node] != models[node]).sum()),
        mean_group=float(count[count > 0].mean() + 1),
        largest_error=float(np.abs(result.vectors[node] - mean).max()),
        sent={category: int(counts[node]) for category, counts in result.bytes.items()},
    )


def _glimpse(
    graph: nx.Graph,
    models: NDArray[np.float32],
    result: RoundResult,
    shares: dict[tuple[int, int], Frame],
) -> Glimpse:
    sender, receiver = min(shares)
    others = [node for node in graph[receiver] if node != sender]
    sent = np.flatnonzero(result.selected[sender] & result.selected[others].any(axis=0))[:4]
    view = [NodeId(node) for node in sorted(graph[receiver])]
    share = Share.decode(read_header(shares[sender, receiver].payload)[1], view, explicit=False)
    words = unpack(share.values, 32, len(share.values) // 4)[: len(sent)]
    return Glimpse(
        sender=sender,
        receiver=receiver,
        values=tuple(models[sender][sent].tolist()),
        words=tuple(words.tolist()),
    )


def compare() -> Iterator[tuple[str, RoundResult]]:
    """One round of each method on the same models."""
    graph, models = network()
    for name, method in methods():
        yield name, Ensemble(graph, method, SIZE, seed=1).round(models)
