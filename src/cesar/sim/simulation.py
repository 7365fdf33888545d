"""The round loop: train, average, and now and then test. The same nodes and frames as between real peers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from torch import nn

from cesar.errors import ConfigError
from cesar.indices import IndexSet
from cesar.learn.flat import flatten
from cesar.learn.samples import Dataset
from cesar.learn.training import Cohort, Sgd
from cesar.methods import Method
from cesar.node import sparsifier_of
from cesar.seeds import SeedTree
from cesar.sim.ensemble import CrashPoint, Ensemble
from cesar.sparsify import TopK
from cesar.wire import CATEGORIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Each node crashes with this probability in every round, at this point, and is back in the next."""

    rate: float = 0.0
    point: CrashPoint = "after_coordination"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """What one round cost and shared.

    Attributes:
        sent: bytes by category, mean over nodes.
        seconds: time for training and for the protocol.
    """

    round_: int
    shared: float
    crashed: int
    sent: dict[str, float]
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What went into a round of averaging. The next round writes over the models.

    Attributes:
        models: (n, d), after local training and before averaging.
        sets: what each node selected, or with coordinated subsampling what is selected towards it.
    """

    models: NDArray[np.float32]
    sets: tuple[IndexSet, ...]
    graph: nx.Graph


class Simulation:
    """A run that can be stopped and taken up again after any round.

    Args:
        models: (n, d) to go on with; by default all nodes start from the module's parameters.
        next_round: the round to go on with.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        workers: int | None = None,
        models: NDArray[np.float32] | None = None,
        next_round: int = 0,
    ) -> None:
        self._setup, self._seeds = setup, SeedTree(setup.seed)
        self._pool = ThreadPoolExecutor(workers or os.cpu_count())
        nodes = len(setup.parts)
        start = flatten(setup.module).numpy()
        self.models = np.tile(start, (nodes, 1)) if models is None else models
        if self.models.shape != (nodes, len(start)):
            raise ConfigError(
                f"models have shape {self.models.shape}, but {(nodes, len(start))} was expected"
            )
        self._spare = np.empty_like(self.models)
        self._cohort = Cohort(
            setup.data, setup.module, setup.parts, setup.sgd, seeds=self._seeds, pool=self._pool
        )
        self._ensemble = Ensemble(
            setup.graph(next_round),
            setup.method,
            len(start),
            seed=setup.seed,
            workers=workers,
            first_round=next_round,
        )
        self._ranks_change = isinstance(sparsifier_of(setup.method), TopK)
        self.next_round = next_round
        self.exchange: Exchange | None = None  # of the last round

    def run(self, rounds: int) -> Iterator[RoundRecord]:
        """Go on until `rounds` rounds are done; yields after each."""
        while self.next_round < rounds:
            yield self._round()

    def close(self) -> None:
        """Let the worker threads go."""
        self._pool.shutdown()
        self._ensemble.close()

    def _round(self) -> RoundRecord:
        number = self.next_round
        begin = time.perf_counter()
        reference = self.models.copy() if self._ranks_change else None
        self._cohort.train(self.models, number)
        trained = time.perf_counter()
        graph = self._setup.graph(number)
        if self._setup.dynamic:
            self._ensemble.use_graph(graph)
        crashes = self._crashes(number)
        result = self._ensemble.round(self.models, reference=reference, crashes=crashes, out=self._spare)
        self.models, self._spare = self._spare, self.models
        self.exchange = Exchange(models=result.entered, sets=result.sets, graph=graph)
        self.next_round = number + 1
        seconds = {"training": trained - begin, "protocol": time.perf_counter() - trained}
        sent = {category: float(result.bytes[category].mean()) for category in CATEGORIES}
        return RoundRecord(
            round_=number, shared=result.shared, crashed=len(crashes), sent=sent, seconds=seconds
        )

    def _crashes(self, number: int) -> dict[int, CrashPoint]:
        faults = self._setup.faults
        draws = self._seeds.generator("faults", number).random(len(self.models))
        return {int(node): faults.point for node in np.flatnonzero(draws < faults.rate)}

    def evaluate(self, test_samples: int | None = None, summaries: int = 50) -> dict[str, float]:
        """Test metrics on the first test samples, averaged over the nodes; ROUGE-L on the first `summaries`."""
        return self._cohort.evaluate(self.models, test_samples, summaries)
