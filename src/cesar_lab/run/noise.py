"""The approach of Muffliato (Cyffers et al., 2022): Gaussian noise on models, and gossip steps in which it averages out.

A baseline for comparisons: each gossip step is a round of the engine, with its frames and its bytes.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np

from cesar.base.errors import ConfigError
from cesar.base.seeds import SeedTree
from cesar.base.types import RoundNo
from cesar.sim.ensemble import Ensemble, RoundResult, Tally
from cesar.sim.faults import Crashes
from cesar.sim.nodes import Models
from cesar.sim.wires import Wires


@dataclass(frozen=True, slots=True, kw_only=True)
class Gossip:
    """How a round of a simulation averages.

    Attributes:
        noise: σ, the standard deviation of the noise on every parameter before the first step.
        steps: how often neighbours average in a round.
        clip: how many neighbours of a node may lie: differences to neighbours are clipped (`attackers.clipped_gossip`); 0 for none.
    """

    noise: float = 0.0
    steps: int = 1
    clip: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.noise < float("inf"):
            raise ConfigError(f"noise is {self.noise}, but a standard deviation is 0 or more")
        if not isinstance(self.steps, int) or self.steps < 1:
            raise ConfigError(f"gossip_steps is {self.steps}, but it must be an integer of at least 1")

    def drawn(self, seeds: SeedTree, round_: int, nodes: Sequence[int], size: int) -> Models | float:
        """The noise of these nodes in a round. One stream for all nodes in their order: those of others are dropped."""
        if not self.noise:
            return 0.0
        draw, here = seeds.generator("noise", RoundNo(round_ * self.steps)), frozenset(nodes)
        rows = (draw.standard_normal(size, dtype=np.float32) for _ in range(max(here) + 1))
        noise: Models = np.float32(self.noise) * np.stack([row for i, row in enumerate(rows) if i in here])
        return noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaged:
    """What a round with several steps has brought.

    Attributes:
        entered: (n, d), the models that were averaged: those given, with their noise.
        last: the result of the last step.
        tally: what was sent in all steps.
    """

    entered: Models
    last: RoundResult
    tally: Tally


def average(
    ensemble: Ensemble,
    gossip: Gossip,
    vectors: Models,
    *,
    round_: int,
    noise: Models | float,
    reference: Models | None = None,
    memory: Models | None = None,
    crashes: Crashes | None = None,
    out: Models | None = None,
) -> Generator[Wires, None, Averaged]:
    """All steps of a round, as `Ensemble.exchange` yields them; a crashed node keeps its model without noise."""
    models = entered = vectors + noise if gossip.noise else vectors
    tally: Tally | None = None
    for step in range(gossip.steps):
        final = step + 1 == gossip.steps
        result = yield from ensemble.exchange(
            models,
            round_=round_ * gossip.steps + step,
            reference=reference if step == 0 else None,
            memory=memory,
            crashes=crashes,
            out=out if final else None,
        )
        models = result.vectors
        tally = result.tally if tally is None else tally + result.tally
    if gossip.noise:
        gone = [row for row, node in enumerate(ensemble.here) if node in (crashes or {})]
        models[gone] = vectors[gone]
    assert tally is not None
    return Averaged(entered=entered, last=result, tally=tally)
