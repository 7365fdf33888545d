"""Baselines that hide models by noise: each gossip step is a round of the engine, with its frames and its bytes.

*Muffliato* (Cyffers et al., 2022): Gaussian noise on models, and gossip steps in which it averages out. Its accounting is in `cesar_lab.run.pairwise`.

*Zip-DL* (Biswas et al., PETS 2025): one gossip step, and to each neighbour j node i sends its model with a noise n_ij of its own, and keeps one with n_ii. A receiver j gives i the weight W_ji,
and i draws its noises so that they cancel over all receivers, Σ_j W_ji·n_ij = 0. So the sum of all models is that without noise, while each model that is sent is off by σ or more.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np

from cesar.base.errors import ConfigError
from cesar.base.seeds import SeedTree
from cesar.base.types import RoundNo
from cesar.sim.ensemble import Ensemble, RoundResult, Tally
from cesar.sim.faults import Crashes
from cesar.sim.nodes import Models
from cesar.sim.wires import Wires
from cesar_lab.run.pairwise import weights_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Gossip:
    """How a round of a simulation averages.

    Attributes:
        noise: σ, the standard deviation of the noise on every parameter before the first step.
        steps: how often neighbours average in a round.
        clip: how many neighbours of a node may lie: differences to neighbours are clipped (`attackers.clipped_gossip`); 0 for none.
        correlated: whether the noises of a node cancel, as in Zip-DL.
        bound: the length to which an update is scaled down before noise is added; 0 for none.
    """

    noise: float = 0.0
    steps: int = 1
    clip: int = 0
    correlated: bool = False
    bound: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.noise < float("inf"):
            raise ConfigError(f"noise is {self.noise}, but a standard deviation is 0 or more")
        if not isinstance(self.steps, int) or self.steps < 1:
            raise ConfigError(f"gossip_steps is {self.steps}, but it must be an integer of at least 1")
        if self.correlated and not self.noise:
            raise ConfigError("correlated noise needs its size: give noise, a standard deviation above 0")
        if self.correlated and self.steps > 1:
            raise ConfigError("correlated noise cancels in one step; leave out gossip_steps")

    def drawn(self, seeds: SeedTree, round_: int, nodes: Sequence[int], size: int) -> Models | float:
        """The noise of these nodes in a round. One stream for all nodes in their order: those of others are dropped."""
        if not self.noise or self.correlated:
            return 0.0
        draw, here = seeds.generator("noise", RoundNo(round_ * self.steps)), frozenset(nodes)
        rows = (draw.standard_normal(size, dtype=np.float32) for _ in range(max(here) + 1))
        noise: Models = np.float32(self.noise) * np.stack([row for i, row in enumerate(rows) if i in here])
        return noise

    def bounded(self, before: Models, models: Models) -> None:
        """Scale down what was trained, in place, where it is too long."""
        if not self.bound:
            return
        for start, model in zip(before, models, strict=True):
            update = model.astype(np.float64) - start
            model[:] = start + update * min(1.0, self.bound / max(float(np.linalg.norm(update)), 1e-300))

    def sent(
        self, seeds: SeedTree, round_: int, graph: nx.Graph, sender: int, size: int
    ) -> dict[int, Models]:
        """Zip-DL's noises of a node in a round: for each neighbour, and for itself the one that it keeps.

        Independent numbers ξ are projected on what is orthogonal to the weights w, n = ξ − w·(w·ξ)/|w|². That takes w_j²/|w|² of a variance, so ξ is larger by as much as
        the neighbour with the largest weight loses.
        """
        receivers = weights_of(graph, sender)
        weights = np.array([*receivers.values()], dtype=np.float32)
        share = np.square(weights) / np.square(weights).sum()
        draw = seeds.generator("zip", RoundNo(round_), sender)
        drawn = draw.standard_normal((len(receivers), size), dtype=np.float32)
        drawn -= np.outer(weights / np.square(weights).sum(), weights @ drawn)
        drawn *= np.float32(self.noise / np.sqrt(1 - share[1:].max(initial=0.0)))
        return dict(zip(receivers, drawn, strict=True))

    def heard(
        self, seeds: SeedTree, round_: int, graph: nx.Graph, receivers: Sequence[int], size: int
    ) -> Models:
        """(receivers, d): what Zip-DL's noises add to their averages, Σ_i W_ji·n_ij."""
        total = np.zeros((len(receivers), size), dtype=np.float64)
        rows = {node: row for row, node in enumerate(receivers)}
        for sender in graph:
            weights = weights_of(graph, sender)
            for receiver, noise in self.sent(seeds, round_, graph, sender, size).items():
                if receiver in rows:
                    total[rows[receiver]] += weights[receiver] * noise
        found: Models = total.astype(np.float32)
        return found


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
