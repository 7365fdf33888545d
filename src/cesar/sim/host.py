"""Host: a share of a simulation's nodes, with their data, local training and side of the protocol.

One host in this process has all nodes; or several, each in a process of its own, have some each. A host keeps nothing
between rounds that decides anything: what a round brings depends on its number, the models at its start and the seed,
so that any round can be repeated, there or by another host.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
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
from cesar.sim.ensemble import Ensemble, Models, Tally
from cesar.sim.faults import Faults
from cesar.sim.wires import Wires, drive
from cesar.sparsify import TopK


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

    def first_models(self, nodes: int) -> Models:
        """What so many nodes start from: rows that share their memory, not to be written to."""
        return np.broadcast_to(flatten(self.module).numpy(), (nodes, self.size))

    def for_nodes(self, nodes: range) -> Setup:
        """What a host of these nodes needs: their training samples and no others."""
        parts = [self.parts[node] for node in nodes]
        ends = np.cumsum([len(rows) for rows in parts])
        train = self.data.train.take(np.concatenate(parts))
        return replace(
            self, data=replace(self.data, train=train), parts=np.split(np.arange(ends[-1]), ends[:-1])
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributions:
    """What went into a round of averaging. The next round writes over the models.

    Attributes:
        models: (nodes, d), after local training and before averaging.
        sets: what each node selected, or with coordinated subsampling what is selected towards it.
    """

    models: Models
    sets: tuple[IndexSet, ...]

    @classmethod
    def joined(cls, parts: Sequence[Contributions]) -> Contributions:
        """Of nodes of several hosts, in order."""
        return cls(
            models=np.concatenate([part.models for part in parts]),
            sets=tuple(chosen for part in parts for chosen in part.sets),
        )


class Host:
    """Some nodes of a simulation.

    Args:
        setup: with the parts of these nodes alone.
        nodes: their numbers.
        models: (nodes, d) to go on with; by default the first ones. Training changes them in place if it may.
        workers: threads; by default one per core.
    """

    def __init__(
        self,
        setup: Setup,
        nodes: range,
        *,
        models: Models | None = None,
        next_round: int = 0,
        workers: int | None = None,
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
        self._models = setup.first_models(len(nodes)) if models is None else models
        self._reference: Models | None = None
        self._spare: Models | None = None
        self._contributions: Contributions | None = None

    @property
    def models(self) -> Models:
        """(nodes, d), after the last round; not to be written to."""
        return self._models

    @property
    def contributions(self) -> Contributions:
        """What went into the last round."""
        assert self._contributions is not None, "no round has ended yet"
        return self._contributions

    def take(self, models: Models | None) -> None:
        """Go on with these models, or with the first ones."""
        self._models = self._setup.first_models(len(self._nodes)) if models is None else models

    def train(self, round_: int) -> None:
        """Let every node take its local steps of a round."""
        models = self._own()
        self._reference = models.copy() if self._ranks_change else None
        self._cohort.train(models, round_)

    def average(self, round_: int) -> Tally:
        """Average what was trained; what was sent."""
        return drive(self.exchange(round_))

    def exchange(self, round_: int) -> Generator[Wires, None, Tally]:
        """What `average` does, for whoever carries frames to other hosts; see `Ensemble.exchange`."""
        if self._setup.dynamic:
            self._ensemble.use_graph(self._setup.graph(round_))
        result = yield from self._ensemble.exchange(
            self._models,
            round_=round_,
            reference=self._reference,
            crashes=self._setup.faults.draw(self._setup.seed, round_, self._count),
            out=self._spare,
        )
        self._models, self._spare = result.vectors, self._models
        self._contributions = Contributions(models=result.entered, sets=result.sets)
        return result.tally

    def test(self, test_samples: int | None, summaries: int) -> list[dict[str, float]]:
        """The test metrics of each node."""
        return self._cohort.test(self._own(), test_samples, summaries)

    def close(self) -> None:
        """Let the worker threads go."""
        self._pool.shutdown()
        self._ensemble.close()

    def _own(self) -> Models:
        """The models, in memory that may be written to; that of the first ones and Ray's may not."""
        if not self._models.flags.writeable:
            self._models = np.array(self._models, order="C")
        return self._models
