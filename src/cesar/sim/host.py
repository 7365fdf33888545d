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

from cesar.errors import DataError
from cesar.indices import IndexSet
from cesar.learn.flat import Layout, flatten
from cesar.learn.samples import Dataset
from cesar.learn.training import Cohort, Sgd
from cesar.methods import Method, settling
from cesar.node import sparsifier_of
from cesar.seeds import SeedTree
from cesar.sim.ensemble import Ensemble, Models, Tally
from cesar.sim.faults import Faults
from cesar.sim.wires import Wires, drive
from cesar.sparsify import TopK


@dataclass(frozen=True, slots=True)
class State:
    """All that a run goes on with; not to be written to.

    Attributes:
        models: (nodes, d).
        memory: (nodes, d), what each node last sent, where its method ranks by that.
    """

    models: Models
    memory: Models | None = None

    def rows(self, low: int, high: int) -> State:
        """That of some nodes."""
        return State(self.models[low:high], None if self.memory is None else self.memory[low:high])

    @classmethod
    def joined(cls, states: Sequence[State]) -> State:
        """Of nodes that were kept in several places, in order."""
        memory = [state.memory for state in states if state.memory is not None]
        models = np.concatenate([state.models for state in states])
        return cls(models, np.concatenate(memory) if memory else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """All that decides a run but its length.

    Attributes:
        parts: for each node the rows of the training set that are its own.
        graph: the aggregation graph of a round.
        dynamic: whether the graph changes from round to round.
        settle_from: from this round on nodes average without training, `settle_share` of their models.
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
    settle_from: int | None = None
    settle_share: float = 0.3

    @property
    def size(self) -> int:
        """D."""
        return Layout.of(self.module).size

    @property
    def remembers(self) -> bool:
        """Whether nodes rank by what they last sent."""
        return getattr(sparsifier_of(self.method), "memory", False) is True

    def settles(self, round_: int) -> bool:
        """Whether a round averages without training."""
        return self.settle_from is not None and round_ >= self.settle_from

    def method_of(self, round_: int) -> Method:
        """How a round averages."""
        if not self.settles(round_):
            return self.method
        degrees = [degree for _, degree in self.graph(round_).degree]
        return settling(self.method, self.settle_share, round(sum(degrees) / len(degrees)))

    def first_state(self, nodes: int) -> State:
        """What so many nodes start from, which counts as sent: rows that share their memory."""
        models = np.broadcast_to(flatten(self.module).numpy(), (nodes, self.size))
        return State(models, models if self.remembers else None)

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
        state: to go on with; by default the first one.
        workers: threads; by default one per core.
    """

    def __init__(
        self,
        setup: Setup,
        nodes: range,
        *,
        state: State | None = None,
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
            setup.method_of(next_round),
            setup.size,
            seed=setup.seed,
            workers=workers,
            first_round=next_round,
            nodes=nodes,
            tensors=Layout.of(setup.module).lengths,
        )
        self._settling = setup.settles(next_round)
        self._ranks_change = isinstance(sparsifier_of(setup.method), TopK)
        self._models = self._memory = np.empty((0, 0), dtype=np.float32)
        self.take(state)
        self._reference: Models | None = None
        self._spare: Models | None = None
        self._contributions: Contributions | None = None

    @property
    def state(self) -> State:
        """What to go on with after the last round."""
        return State(self._models, self._memory if self._setup.remembers else None)

    @property
    def contributions(self) -> Contributions:
        """What went into the last round."""
        assert self._contributions is not None, "no round has ended yet"
        return self._contributions

    def take(self, state: State | None) -> None:
        """Go on with this state, or with the first one.

        Raises:
            DataError: it lacks the memory that the method ranks by.
        """
        state = self._setup.first_state(len(self._nodes)) if state is None else state
        self._models = state.models
        if self._setup.remembers:
            if state.memory is None:
                raise DataError(
                    "this run was saved without the memory that its method ranks by; start it anew in another directory"
                )
            self._memory = np.array(state.memory, order="C")  # the exchange writes to it

    def train(self, round_: int) -> None:
        """Let every node take its local steps of a round; nodes that settle take none."""
        if self._setup.settles(round_):
            self._reference = self._models if self._ranks_change else None
            return
        models = self._own()
        self._reference = models.copy() if self._ranks_change else None
        self._cohort.train(models, round_)

    def average(self, round_: int) -> Tally:
        """Average what was trained; what was sent."""
        return drive(self.exchange(round_))

    def exchange(self, round_: int) -> Generator[Wires, None, Tally]:
        """What `average` does, for whoever carries frames to other hosts; see `Ensemble.exchange`."""
        if self._setup.settles(round_) != self._settling:
            self._settling = self._setup.settles(round_)
            self._ensemble.use_method(self._setup.method_of(round_))
        if self._setup.dynamic:
            self._ensemble.use_graph(self._setup.graph(round_))
        result = yield from self._ensemble.exchange(
            self._models,
            round_=round_,
            reference=self._reference,
            memory=self._memory if self._setup.remembers else None,
            crashes=self._setup.faults.draw(self._setup.seed, round_, self._count),
            out=self._spare,
        )
        self._models, self._spare = result.vectors, self._models
        self._contributions = Contributions(models=result.entered, sets=result.sets)
        return result.tally

    def test(self, test_samples: int | None, summaries: int) -> list[dict[str, float]]:
        """The test metrics of each node."""
        return self._cohort.test(self._own(), test_samples, summaries)

    def test_mean(self, test_samples: int | None, summaries: int) -> dict[str, float]:
        """The test metrics of the mean of these nodes' models, which none of them has."""
        (found,) = self._cohort.test(mean_model(self._models), test_samples, summaries)
        return found

    def close(self) -> None:
        """Let the worker threads go."""
        self._pool.shutdown()
        self._ensemble.close()

    def _own(self) -> Models:
        """The models, in memory that may be written to; that of the first ones and Ray's may not."""
        if not self._models.flags.writeable:
            self._models = np.array(self._models, order="C")
        return self._models


def mean_model(models: Models) -> Models:
    """(1, d): the mean of all models."""
    mean: Models = models.mean(axis=0, keepdims=True, dtype=np.float64).astype(np.float32)
    return mean
