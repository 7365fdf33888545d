"""One secure round that a person can follow: what each node learned, what it saw, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from cesar.base.seeds import SeedTree
from cesar.base.types import NodeId
from cesar.graph import named as graphs
from cesar.graph.cells import Cell
from cesar.graph.shares import required_alpha
from cesar.kernels.packing import unpack
from cesar.kernels.slicing import Span, piece_of, read_grid, spans
from cesar.methods import DPSGD, Cesar, Method, SecureAggregation
from cesar.methods.cells import BlockTopK, Cells
from cesar.methods.sparsify import RandomSubsampling, TopK
from cesar.protocol.wire import Frame, Kind, read_header
from cesar.protocol.wire_cells import Exchange, Scatter, row_of
from cesar.sim import CrashPoint, Ensemble, RoundResult

NODES, DEGREE, SIZE, SHARE, MEMBERS = 8, 4, 20_000, 0.30, 4
BITS = 32  # words that add up to the last digit that is shown
SAMPLER = RandomSubsampling(SHARE)
CELLS = Cells(size=MEMBERS, sparsifier=SAMPLER, ring_bits=BITS)
SHOWN = 4

Values = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What the round changed for one node.

    Attributes:
        cell: the members of its cell, itself among them.
        handed_in: parameters of its update that are now in the sum of the cell.
        largest_error: largest difference to the same round computed in the clear.
        sent: bytes by category.
    """

    node: int
    cell: Cell
    handed_in: int
    largest_error: float
    sent: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Glimpse:
    """A few parameters on their way to the member that adds them up.

    Attributes:
        values: what each other member has trained there.
        words: what arrived of it.
        own: what the keeper has trained there itself.
        sums: what the cell tells others, as the sum over all its members.
    """

    keeper: int
    members: Cell
    values: tuple[tuple[float, ...], ...]
    words: tuple[tuple[int, ...], ...]
    own: tuple[float, ...]
    sums: tuple[float, ...]


def network() -> tuple[nx.Graph, Values]:
    """The demonstration's graph and models. Cells begin at a model of zeros, so that models are updates."""
    models = SeedTree(1).generator("demo").standard_normal((NODES, SIZE), dtype=np.float32)
    return graphs.numbered(NODES, DEGREE, 1), models


def methods() -> Iterator[tuple[str, Method]]:
    """What is compared: the unprotected baselines, plain secure aggregation, CESAR and cells."""
    alpha = required_alpha(SHARE, DEGREE)
    yield "D-PSGD, all parameters (no privacy)", DPSGD()
    yield "D-PSGD, TopK (no privacy)", DPSGD(sparsifier=TopK(SHARE))
    yield "secure aggregation, all parameters", SecureAggregation()
    yield "CESAR, TopK", Cesar(sparsifier=TopK(alpha))
    yield "CESAR, random subsampling", Cesar(sparsifier=RandomSubsampling(alpha))
    yield "cells of four, all parameters", Cells(size=MEMBERS)
    yield "cells of four, TopK by blocks", Cells(size=MEMBERS, sparsifier=BlockTopK(SHARE))
    yield "cells of four, random subsampling", Cells(size=MEMBERS, sparsifier=SAMPLER)


def secure_round(
    crashes: dict[int, CrashPoint] | None = None,
) -> tuple[RoundResult, list[Learned], Glimpse | None]:
    """A round of cells with random subsampling, checked against the same round in the clear; a glimpse if nobody crashes."""
    _, models = network()
    frames: dict[tuple[int, int, Kind], Frame] = {}

    def watch(sender: NodeId, recipient: NodeId, frame: Frame) -> None:
        frames[sender, recipient, frame.kind] = frame

    ensemble = Ensemble(None, CELLS, SIZE, seed=1, nodes=NODES)
    result = ensemble.round(models, reference=np.zeros_like(models), crashes=crashes, watch=watch)
    expected = _in_the_clear(models, result, frozenset(crashes or ()))
    learned = [
        Learned(
            node=node,
            cell=_cell(result, node),
            handed_in=result.sets[node].count if result.reports[node].summed else 0,
            largest_error=float(np.abs(result.vectors[node] - expected[node]).max()),
            sent={category: int(counts[node]) for category, counts in result.bytes.items()},
        )
        for node in range(NODES)
    ]
    return result, learned, None if crashes else _glimpse(models, result, frames)


def _cell(result: RoundResult, node: int) -> Cell:
    assert result.cells is not None
    return next(cell for cell in result.cells if node in cell)


def _in_the_clear(models: Values, result: RoundResult, gone: frozenset[int]) -> NDArray[np.float64]:
    """The same round without masks: two cells, each of which hears the other.

    A cell that lacks a member adds nothing up. Its model, still zero, is told by those who are there, each of its own slice.
    """
    assert result.cells is not None
    there, new = result.sets[0].positions(), models.astype(np.float64)
    for cell, other in (result.cells, result.cells[::-1]):
        if not gone.isdisjoint(cell):
            continue
        own = models[list(cell)][:, there].mean(axis=0, dtype=np.float64)
        heard = models[list(other)][:, there].mean(axis=0, dtype=np.float64)
        if not gone.isdisjoint(other):
            slices = spans(len(result.sets[0].words), len(other))
            silent = [slices[other.index(NodeId(node))] for node in gone & set(other)]
            heard = np.where(np.any([_within(there, one) for one in silent], axis=0), own, 0.0)
        for node in cell:
            new[node, there] = (own + heard) / 2
    return new


def _within(positions: NDArray[np.int32], span: Span) -> NDArray[np.bool_]:
    return (positions >= 64 * span.first) & (positions < 64 * span.last)


def _glimpse(models: Values, result: RoundResult, frames: dict[tuple[int, int, Kind], Frame]) -> Glimpse:
    assert result.cells is not None
    cell, hearing = result.cells
    keeper, others = cell[0], cell[1:]
    words, edges = result.sets[0].words, np.array([SIZE])
    told = Exchange.decode(
        read_header(frames[keeper, hearing[0], Kind.CELL_EXCHANGE].payload)[1], len(words), 0
    )
    piece = piece_of(words, *told.span, edges)
    exponents, row = row_of(told.rest, len(piece.edges))
    sums = len(cell) * read_grid(row, piece, exponents, BITS)[:SHOWN].astype(np.float64)
    first = result.sets[0].positions()[:SHOWN]
    came = []
    for member in others:
        frame = frames[member, keeper, Kind.CELL_SCATTER]
        masked = Scatter.decode(read_header(frame.payload)[1], len(others))
        came.append(tuple(unpack(masked.values, BITS, frame.parameters)[:SHOWN].tolist()))
    return Glimpse(
        keeper=keeper,
        members=others,
        values=tuple(tuple(models[member][first].tolist()) for member in others),
        words=tuple(came),
        own=tuple(models[keeper][first].tolist()),
        sums=tuple(sums.tolist()),
    )


def compare() -> Iterator[tuple[str, RoundResult]]:
    """One round of each method on the same models."""
    graph, models = network()
    for name, method in methods():
        yield name, Ensemble(graph, method, SIZE, seed=1).round(models)
