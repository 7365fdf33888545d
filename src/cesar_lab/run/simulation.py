"""The round loop: train, average, and now and then test. The same nodes and frames as between real peers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cesar.base.errors import ConfigError
from cesar.protocol.wire import CATEGORIES
from cesar.sim.ensemble import Tally
from cesar_lab.learn.training import mean_metrics
from cesar_lab.run.host import Contributions, Host, Setup, State, mean_model


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


class Backend(Protocol):
    """Where the nodes of a simulation live: in this process, or with hosts in other processes."""

    def train(self, round_: int) -> None:
        """Let every node take its local steps of a round."""

    def average(self, round_: int) -> Tally:
        """Average what was trained; the tally of all nodes."""

    def test(self, test_samples: int | None, summaries: int) -> list[dict[str, float]]:
        """The test metrics of each node."""

    def test_mean(self, test_samples: int | None, summaries: int) -> dict[str, float]:
        """The test metrics of the mean of all models, which no node has."""

    @property
    def state(self) -> State:
        """What to go on with after the last round that was averaged."""

    @property
    def contributions(self) -> Contributions:
        """What went into that round."""

    def close(self) -> None:
        """Let go of everything."""


class BackendFactory(Protocol):
    """Makes a backend for a run."""

    def __call__(self, setup: Setup, state: State | None, next_round: int) -> Backend:
        """A backend that goes on with this state, or starts anew."""


def local_backend(
    setup: Setup, state: State | None, next_round: int, *, workers: int | None = None
) -> Backend:
    """One host in this process has all nodes."""
    return Host(setup, range(len(setup.parts)), state=state, next_round=next_round, workers=workers)


class Simulation:
    """A run that can be stopped and taken up again after any round.

    Args:
        backend: makes what the nodes live in; by default this process.
        state: to go on with; by default all nodes start from the module's parameters.
        next_round: the round to go on with.
    """

    def __init__(
        self,
        setup: Setup,
        backend: BackendFactory = local_backend,
        *,
        state: State | None = None,
        next_round: int = 0,
    ) -> None:
        self._setup, self.next_round = setup, next_round
        expected = (len(setup.parts), setup.size)
        if state is not None and state.models.shape != expected:
            raise ConfigError(f"models have shape {state.models.shape}, but {expected} was expected")
        self._backend = backend(setup, state, next_round)

    @property
    def state(self) -> State:
        """What to go on with after the last round."""
        return self._backend.state

    @property
    def contributions(self) -> Contributions:
        """What went into the last round."""
        return self._backend.contributions

    def run(self, rounds: int) -> Iterator[RoundRecord]:
        """Go on until `rounds` rounds are done; yields after each."""
        while self.next_round < rounds:
            yield self._round()

    def close(self) -> None:
        """Let the workers go."""
        self._backend.close()

    def _round(self) -> RoundRecord:
        number = self.next_round
        begin = time.perf_counter()
        self._backend.train(number)
        trained = time.perf_counter()
        tally = self._backend.average(number)
        self.next_round = number + 1
        return RoundRecord(
            round_=number,
            shared=tally.shared,
            crashed=len(self._setup.faults.draw(self._setup.seed, number, len(self._setup.parts))),
            sent={category: float(tally.bytes[category].mean()) for category in CATEGORIES},
            seconds={"training": trained - begin, "protocol": time.perf_counter() - trained},
        )

    def evaluate(self, test_samples: int | None = None, summaries: int = 50) -> dict[str, float]:
        """Test metrics on the first test samples, with ROUGE-L on the first `summaries`: the mean over the nodes, the
        spread between them (standard deviation), and those of the mean of all models. `distance` says how far models
        are from their mean: the root of the mean square over nodes and parameters.
        """
        tested = self._setup.tested
        found = self._backend.test(test_samples, summaries)
        rows = [found[node] for node in tested]
        models = self._backend.state.models[tested]
        away = models - mean_model(models)
        return {
            **mean_metrics(rows),
            **{f"{name}_spread": float(np.std([row[name] for row in rows])) for name in rows[0]},
            **{
                f"mean_model_{name}": v
                for name, v in self._backend.test_mean(test_samples, summaries).items()
            },
            "distance": float(np.sqrt(np.mean(np.square(away, dtype=np.float64)))),
        }
