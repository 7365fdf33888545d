"""A round of all nodes of the simulator: its time beside the keystream alone, and its bytes beside D-PSGD's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import networkx as nx
import numpy as np

from cesar.base.seeds import SeedTree
from cesar.methods import Method
from cesar.protocol.wire import CATEGORIES
from cesar.sim import Ensemble
from cesar_lab.bench.floor import keystream_seconds, seconds
from cesar_lab.run.machine import peak_rss_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundBenchmark:
    """What `cesar bench round` measured.

    Attributes:
        round_seconds: median time of a whole round of all nodes.
        floor_seconds: median time of making d 32-bit keystream words for every (receiver, sender, partner)
            of the graph with the cipher alone, on the same cores.
        ratio: of the two.
        beside_seconds: median time of a round of another method, in turns with these; None without one.
        to_beside: round_seconds / beside_seconds.
        setup_seconds: key agreement of all pairs and the first, untimed round.
        shared: β as measured.
        bytes_per_node: what a node sends in a round, by category, on average.
        peak_rss_bytes: the most memory that the process has held.
    """

    round_seconds: float
    floor_seconds: float
    ratio: float
    beside_seconds: float | None
    to_beside: float | None
    setup_seconds: float
    shared: float
    bytes_per_node: dict[str, float]
    peak_rss_bytes: int


def bench_round(
    graph: nx.Graph,
    method: Method,
    size: int,
    *,
    rounds: int,
    beside: Method | None = None,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> RoundBenchmark:
    """Time whole rounds of all nodes, each beside its floor, and beside a round of another method if one is given."""
    masks = sum(
        neighbours * (neighbours - 1) for _, neighbours in graph.degree
    )  # (receiver, sender, partner)
    progress(f"drawing {len(graph)} models of {size:,} parameters")
    models = np.empty((len(graph), size), dtype=np.float32)
    draw = SeedTree(seed).generator("models")
    for row in models:
        draw.standard_normal(out=row, dtype=np.float32)
    ensemble = Ensemble(graph, method, size, seed=seed)
    other = None if beside is None else Ensemble(graph, beside, size, seed=seed)
    progress("one round to agree on keys and to compile")
    out = np.empty_like(models)
    setup = seconds(lambda: ensemble.round(models, out=out))
    times, floors, others = [], [], []
    if other is not None:
        other.round(models, out=out)
    for k in range(rounds):
        progress(f"round {k + 1} of {rounds}")
        begin = time.perf_counter()
        result = ensemble.round(models, out=out)
        times.append(time.perf_counter() - begin)
        if other is not None:
            progress(f"round {k + 1} of {rounds}, the other method")
            others.append(seconds(partial(other.round, models, out=out)))
        progress(f"floor {k + 1} of {rounds}")
        floors.append(keystream_seconds(masks, size))
    round_seconds, floor_seconds = statistics.median(times), statistics.median(floors)
    beside_seconds = statistics.median(others) if others else None
    return RoundBenchmark(
        round_seconds=round_seconds,
        floor_seconds=floor_seconds,
        ratio=round_seconds / floor_seconds,
        beside_seconds=beside_seconds,
        to_beside=None if beside_seconds is None else round_seconds / beside_seconds,
        setup_seconds=setup,
        shared=result.shared,
        bytes_per_node={name: float(counts.mean()) for name, counts in result.bytes.items()},
        peak_rss_bytes=peak_rss_bytes(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesBenchmark:
    """What `cesar bench bytes` counted.

    Attributes:
        cesar: bytes that a node sends with CESAR, by category, on average over nodes and graphs.
        dpsgd: the same with D-PSGD at the measured share.
        shared: the measured share.
        ratios: CESAR to D-PSGD, all categories added, for each graph.
        ratio: their mean.
    """

    cesar: dict[str, float]
    dpsgd: dict[str, float]
    shared: float
    ratios: list[float]
    ratio: float


def bench_bytes(
    graphs: list[nx.Graph],
    method: Method,
    baseline: Callable[[float], Method],
    size: int,
    *,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> BytesBenchmark:
    """Count one round of CESAR and one of the baseline at CESAR's measured share, on each graph."""
    pairs = []
    for k, graph in enumerate(graphs):
        progress(f"graph {k + 1} of {len(graphs)}")
        models = SeedTree(seed).generator("models", k).standard_normal((len(graph), size), dtype=np.float32)
        ours = Ensemble(graph, method, size, seed=seed).round(models)
        theirs = Ensemble(graph, baseline(ours.shared), size, seed=seed).round(models)
        pairs.append((ours, theirs))
    ratios = [ours.total_bytes / theirs.total_bytes for ours, theirs in pairs]
    mean = {
        side: {name: float(np.mean([p[side].bytes[name] for p in pairs])) for name in CATEGORIES}
        for side in (0, 1)
    }
    return BytesBenchmark(
        cesar=mean[0],
        dpsgd=mean[1],
        shared=statistics.mean(ours.shared for ours, _ in pairs),
        ratios=ratios,
        ratio=statistics.mean(ratios),
    )
