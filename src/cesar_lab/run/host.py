"""Host: a share of a simulation's nodes, with their data, local training and side of the protocol.

One host in this process has all nodes; or several, each in a process of its own, have some each. A host keeps nothing
between rounds that decides anything: what a round brings depends on its number, the models at its start and the seed,
so that any round can be repeated, there or by another host.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from torch import nn

from cesar.base.errors import ConfigError, DataError
from cesar.base.seeds import SeedTree
from cesar.graph.neighbourhood import mean_degree
from cesar.indices import IndexSet
from cesar.methods import Method
from cesar.peer.api.flat import Layout, flatten
from cesar.protocol.cell_state import CellState
from cesar.sim.ensemble import Ensemble, Tally
from cesar.sim.faults import CrashPoint, Faults
from cesar.sim.nodes import Models
from cesar.sim.wires import Wires, drive
from cesar_lab.data.samples import Dataset
from cesar_lab.learn.training import Cohort, Sgd
from cesar_lab.run.attackers import Attackers, clipped_gossip
from cesar_lab.run.noise import Gossip, average
from cesar_lab.run.privacy import Budget


@dataclass(frozen=True, slots=True)
class State:
    """All that a run goes on with; not to be written to.

    Attributes:
        models: (nodes, d).
        memory: (nodes, d), what each node last sent, where its method ranks by that.
        cells: what each member of a cell keeps (`CellState.to_arrays`), where there are cells and a round has ended.
    """

    models: Models
    memory: Models | None = None
    cells: tuple[dict[str, NDArray[np.generic]], ...] | None = None

    def rows(self, low: int, high: int) -> State:
        """That of some nodes."""
        memory = None if self.memory is None else self.memory[low:high]
        return State(self.models[low:high], memory, None if self.cells is None else self.cells[low:high])

    @classmethod
    def joined(cls, states: Sequence[State]) -> State:
        """Of nodes that were kept in several places, in order."""
        memory = [state.memory for state in states if state.memory is not None]
        models = np.concatenate([state.models for state in states])
        cells = tuple(kept for state in states if state.cells is not None for kept in state.cells)
        return cls(models, np.concatenate(memory) if memory else None, cells or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """All that decides a run but its length.

    Attributes:
        parts: for each node the rows of the training set that are its own.
        graph: the aggregation graph of a round.
        dynamic: whether the graph changes from round to round.
        spent: ε between nodes by the number of rounds, where noise follows from a target.
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
    gossip: Gossip = field(default_factory=Gossip)
    attackers: Attackers | None = None
    budget: Budget | None = None
    spent: Callable[[int], float] | None = None
    settle_from: int | None = None
    settle_share: float = 0.3

    @property
    def size(self) -> int:
        """D."""
        return Layout.of(self.module).size

    @property
    def remembers(self) -> bool:
        """Whether nodes rank by what they last sent."""
        return self.method.sparsifier.memory

    @property
    def samples(self) -> list[int] | None:
        """How many each node trains on, where nodes count by that."""
        return [len(part) for part in self.parts] if self.method.weighted else None

    def crashes(self, round_: int, nodes: int) -> dict[int, CrashPoint]:
        """Who crashes in a round, and who is never there."""
        silent = self.attackers.silent if self.attackers is not None else ()
        gone: dict[int, CrashPoint] = dict.fromkeys(silent, "before_announce")
        return {**self.faults.draw(self.seed, round_, nodes), **gone}

    @property
    def tested(self) -> list[int]:
        """The nodes whose models are tested: those that do not lie."""
        without = self.attackers.tested_without if self.attackers is not None else frozenset()
        return [node for node in range(len(self.parts)) if node not in without]

    def settles(self, round_: int) -> bool:
        """Whether a round averages without training."""
        return self.settle_from is not None and round_ >= self.settle_from

    def method_of(self, round_: int) -> Method:
        """How a round averages."""
        if not self.settles(round_):
            return self.method
        return self.method.settled(self.settle_share, mean_degree(self.graph(round_)))

    def first_state(self, nodes: int) -> State:
        """What nodes start from, which counts as sent: rows that share their memory."""
        models = np.broadcast_to(flatten(self.module).numpy(), (nodes, self.size))
        return State(models, models if self.remembers else None)

    def for_nodes(self, nodes: range) -> Setup:
        """What a host of these nodes needs: their training samples and no others.

        Raises:
            ConfigError: attackers see the updates of all nodes, which must be in one place.
        """
        if self.attackers is not None and len(nodes) < len(self.parts):
            raise ConfigError("attackers are for simulations in one process; leave out --ray")
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
        sets: what each node selected, or with cells what is handed in.
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
            flipped=setup.attackers.nodes
            if setup.attackers is not None and setup.attackers.kind == "labels"
            else frozenset(),
        )
        self._ensemble = Ensemble(
            graph,
            setup.method_of(next_round),
            setup.size,
            seed=setup.seed,
            workers=workers,
            first_round=next_round * setup.gossip.steps,
            here=nodes,
            tensors=Layout.of(setup.module).lengths,
            samples=setup.samples,
        )
        self._settling = setup.settles(next_round)
        self._ranks_change = setup.method.sparsifier.ranks
        self._models = self._memory = np.empty((0, 0), dtype=np.float32)
        self.take(state)
        self._reference: Models | None = None
        self._spare: Models | None = None
        self._contributions: Contributions | None = None

    @property
    def state(self) -> State:
        """What to go on with after the last round."""
        memory = self._memory if self._setup.remembers else None
        kept = tuple(one.to_arrays() for one in self._ensemble.states)
        return State(self._models, memory, kept or None)

    @property
    def contributions(self) -> Contributions:
        """What went into the last round."""
        assert self._contributions is not None, "no round has ended yet"
        return self._contributions

    def take(self, state: State | None) -> None:
        """Go on with this state, or with the first one.

        Raises:
            DataError: it lacks the memory that the method ranks by, or what members of cells have not handed in.
        """
        kept = None if state is None or state.cells is None else list(map(CellState.from_arrays, state.cells))
        if self._ensemble.plan is not None and state is not None and kept is None:
            raise DataError(
                "this run was saved without the unsent updates of its cells, and without them a number could be in two "
                "sums; start it anew in another directory"
            )
        self._ensemble.take(kept)
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
        given, models = self._models, self._own()
        before: Models | None = None
        if given is not models:
            before = given  # the first round's models are kept as they are: with them cells learn where training begins
        elif self._ranks_change or self._setup.attackers or self._setup.gossip.bound:
            before = models.copy()
        self._reference = before if self._ranks_change or given is not models else None
        self._cohort.train(models, round_)
        if before is not None:
            self._setup.gossip.bounded(before, models)
        if self._setup.attackers is not None:
            assert before is not None
            self._setup.attackers.lie(before, models)

    def average(self, round_: int) -> Tally:
        """Average what was trained; what was sent."""
        return drive(self.exchange(round_))

    def exchange(self, round_: int) -> Generator[Wires, None, Tally]:
        """What `average` does, for a caller that carries frames to other hosts; see `Ensemble.exchange`."""
        if self._setup.settles(round_) != self._settling:
            self._settling = self._setup.settles(round_)
            self._ensemble.use_method(self._setup.method_of(round_))
        if self._setup.dynamic:
            self._ensemble.use_graph(self._setup.graph(round_))
        gossip, seeds, size = self._setup.gossip, SeedTree(self._setup.seed), self._setup.size
        result = yield from average(
            self._ensemble,
            gossip,
            self._models,
            round_=round_,
            noise=gossip.drawn(seeds, round_, self._nodes, size),
            reference=self._reference,
            memory=self._memory if self._setup.remembers else None,
            crashes=self._setup.crashes(round_, self._count),
            out=self._spare,
        )
        if (
            gossip.correlated
        ):  # averages are linear, so what the noises of all senders add to them can be added afterwards
            result.last.vectors[:] += gossip.heard(
                seeds, round_, self._setup.graph(round_), self._nodes, size
            )
        if gossip.clip and not self._settling:
            result.last.vectors[:] = clipped_gossip(result.entered, self._setup.graph(round_), gossip.clip)
        self._models, self._spare = result.last.vectors, self._models
        self._contributions = Contributions(models=result.entered, sets=result.last.sets)
        return result.tally

    def test(self, test_samples: int | None, summaries: int) -> list[dict[str, float]]:
        """The test metrics of each node."""
        return self._cohort.test(self._own(), test_samples, summaries)

    def test_mean(self, test_samples: int | None, summaries: int) -> dict[str, float]:
        """The test metrics of the mean of these nodes' models, which none of them has."""
        models = self._models if self._setup.attackers is None else self._models[self._setup.tested]
        (found,) = self._cohort.test(mean_model(models), test_samples, summaries)
        return found

    def show(self, models: Models) -> None:
        """Test these models next; nothing is averaged before a state is taken again."""
        self._models = models

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
