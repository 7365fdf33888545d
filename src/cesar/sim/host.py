"""Host: a share of a simulation's nodes, with their data, local training and side of the protocol.

One host in this process has all nodes; or several, each in a process of its own, have some each. A host keeps nothing
between rounds that decides anything: what a round brings depends on its number, the models at its start and the seed,
so that any round can be repeated, there or by another host.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from torch import nn

from cesar.indices import IndexSet
from cesar.learn.flat import Layout, flatten
from cesar.learn.samples import Dataset
from cesar.learn.training import Cohort, Sgd
from cesar.methods import Method
from cesar.node import sparsifier_of
from cesar.seeds import SeedTree
from cesar.sim.ensemble import CrashPoint, Ensemble, Tally
from cesar.sim.network import Network
from cesar.sparsify import TopK

Models = NDArray[np.float32]
"""(nodes, d)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Each node crashes with this probability in every round, at this point, and is back in the next."""

    rate: float = 0.0
    point: CrashPoint = "after_coordination"

    def draw(self, seed: int, round_: int, nodes: int) -> dict[int, CrashPoint]:
        """Who crashes in a round."""
        draws = SeedTree(seed).generator("faults", round_).random(nodes)
        return {int(node): self.point for node in np.flatnonzero(draws < self.rate)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """All that decides a run but its length.

    Attributes:
        parts: for each node the rows of the training set that are its own.
        graph: the aggregation graph of a round.
        dynamic: whether the graph changes from round to round.
    """

    data: Dataset
    module: nn.Module
    parts: list[NDArray[np.int64]]
    sgd: Sgd
    graph: Callable[[int], nx.Graph]
    dynamic: bool
    method: Method
    faults: Faults
    seed: int

    @property
    def size(self) -> int:
        """D."""
        return Layout.of(self.module).size

    def share(self, nodes: range) -> Setup:
        """What a host of these nodes needs: their training samples and no others."""
        parts = [self.parts[node] for node in nodes]
        ends = np.cumsum([len(rows) for rows in parts])
        train = self.data.train.take(np.concatenate(parts))
        return replace(
            self, data=replace(self.data, train=train), parts=np.split(np.arange(ends[-1]), ends[:-1])
        )


class Host:
    """Some nodes of a simulation.

    Args:
        setup: with the parts of these nodes alone.
        nodes: their numbers.
        workers: threads; by default one per core.
    """

    def __init__(
        self, setup: Setup, nodes: range, *, workers: int | None = None, next_round: int = 0
    ) -> None:
        self._setup, self._nodes = setup, nodes
        graph = setup.graph(next_round)
        self._count = len(graph)
        self._pool = ThreadPoolExecutor(workers or os.cpu_count())
        self._cohort = Cohort(
            setup.data,
            setup.module,
            setup.parts,
            setup.sgd,
            seeds=SeedTree(setup.seed),
            pool=self._pool,
            first=nodes.start,
        )
        self._ensemble = Ensemble(
            graph,
            setup.method,
            setup.size,
            seed=setup.seed,
            workers=workers,
            first_round=next_round,
            nodes=nodes,
        )
        self._ranks_change = isinstance(sparsifier_of(setup.method), TopK)
        self._expected = next_round
        self._network: Network | None = None
        self._spare: Models | None = None

    @property
    def steps(self) -> int:
        """Gossip steps in a round."""
        return self._ensemble.steps

    def start(self) -> Models:
        """The models that all nodes start from."""
        return np.tile(flatten(self._setup.module).numpy(), (len(self._nodes), 1))

    def train(self, models: Models, round_: int) -> None:
        """Begin a round with local training, which changes the models in place; they belong to the host from now on."""
        if self._network is not None or round_ != self._expected:
            self._ensemble.rewind(round_)
        self._network, self._expected = None, round_ + 1
        self._models, self._round = models, round_
        self._reference = models.copy() if self._ranks_change else None
        self._cohort.train(models, round_)

    def begin(self) -> Network:
        """Begin to average; the network of these nodes."""
        if self._setup.dynamic:
            self._ensemble.use_graph(self._setup.graph(self._round))
        crashes = self._setup.faults.draw(self._setup.seed, self._round, self._count)
        out = np.empty_like(self._models) if self._spare is None else self._spare
        self._network = self._ensemble.begin(
            self._models, reference=self._reference, crashes=crashes, out=out
        )
        return self._network

    def proceed(self) -> Network:
        """Begin the next of the method's gossip steps."""
        self._network = self._ensemble.proceed()
        return self._network

    def finish(self) -> tuple[Tally, Models]:
        """What was sent, and the new models, when nothing is in flight any more."""
        result = self._ensemble.finish()
        self._network, self._spare = None, self._models
        self._contributions = result.entered, result.sets
        return result.tally, result.vectors

    def contributions(self) -> tuple[Models, tuple[IndexSet, ...]]:
        """The models that went into the last round, and what was selected of them."""
        return self._contributions

    def test(self, models: Models, test_samples: int | None, summaries: int) -> list[dict[str, float]]:
        """The test metrics of each node."""
        return self._cohort.test(models, test_samples, summaries)

    def close(self) -> None:
        """Let the worker threads go."""
        self._pool.shutdown()
        self._ensemble.close()
