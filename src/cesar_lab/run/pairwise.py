"""Muffliato's accounting (Cyffers, Even, Bellet and Massoulié, 2022): pairwise network differential privacy of gossip with noise.

*What is hidden.* In a round node u puts z_u = x_u + noise of variance σ² into K gossip steps, z(t+1) = W·z(t). Another data set at u moves x_u by at most Δ. What does
node v learn of it? Pairs of nodes have an ε each, and those far apart should have a smaller one.

*The exact loss.* Node v hears z_w(t) of its neighbours w at steps t = 0, …, K − 1, and it knows its own z_v. All of that is A·z, with the rows e_w·W^t. So it is Gaussian with the
covariance σ²·A·Aᵀ, and another data set moves its mean by Δ·A·e_u. The Rényi divergence of order α between the two is

    α/2 · (Δ·A·e_u)ᵀ (σ²·A·Aᵀ)⁺ (Δ·A·e_u)  =  α · Δ²/2σ² · q,     q = |P·e_u|²,

where P projects onto the span of A's rows, for Aᵀ(A·Aᵀ)⁺A = P. So q lies between 0 (v learns nothing of u) and 1: v learns as much as if u had sent it z_u, which is the loss of
*local* differential privacy.

*The published bound* adds up the divergences of single messages, q ≤ Σ_t Σ_w (W^t)²_uw / |(W^t)_w|². Messages share their noise, so their divergences do not add up, and **the sum can
be smaller than the exact loss**. On the path 0 – 1 – 2 with weights 1/3 node 0 hears z_1 and (z_0 + z_1 + z_2)/3 and works out z_2. The exact q is 1, and the published one is 1/3. So noise here follows
from the exact loss, and the published one is for comparison alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from cesar.base.errors import ConfigError

Losses = NDArray[np.float64]
Pairs = Literal["max", "mean"]

_NEW = 1e-9
"""A direction of unit length has to stick out that far to be a new one."""


def weights_of(graph: nx.Graph, node: int) -> dict[int, float]:
    """With which weight each receiver takes a node's model, itself first: Metropolis–Hastings."""
    near = {v: 1 / (1 + max(graph.degree[node], graph.degree[v])) for v in sorted(graph[node])}
    return {node: 1 - sum(near.values()), **near}


def mixing_matrix(graph: nx.Graph) -> Losses:
    """W of D-PSGD: symmetric, rows and columns with sum 1."""
    weights = np.zeros((len(graph), len(graph)))
    for node in graph:
        for receiver, weight in weights_of(graph, node).items():
            weights[receiver, node] = weight
    return weights


def exact_losses(graph: nx.Graph, steps: int) -> Losses:
    """(n, n): q of u (row) towards v (column) after `steps` gossip steps; 1 on the diagonal.

    The rows of A span a block Krylov space of W. Its basis is made step by step (Arnoldi): the powers of W are nearly parallel,
    and a rank that is taken from them would be too small, on the unsafe side.
    """
    weights, nodes = mixing_matrix(graph), len(graph)
    losses = np.empty((nodes, nodes))
    for v in range(nodes):
        basis = fresh = np.eye(nodes)[:, [v, *sorted(graph[v])]]
        for _ in range(steps - 1):
            fresh = _beyond(weights @ fresh, basis)
            basis = np.concatenate([basis, fresh], axis=1)
        losses[:, v] = np.square(basis).sum(axis=1)
    return np.minimum(losses, 1.0)


def _beyond(columns: Losses, basis: Losses) -> Losses:
    """An orthonormal basis of what these columns add to a basis."""
    found = np.empty((len(columns), 0))
    for column in columns.T:
        known, rest = np.concatenate([basis, found], axis=1), column
        for _ in range(2):  # once is not enough where little is left
            rest = rest - known @ (known.T @ rest)
        length = float(np.linalg.norm(rest))
        if length > _NEW:
            found = np.concatenate([found, (rest / length)[:, None]], axis=1)
    return found


def published_losses(graph: nx.Graph, steps: int) -> Losses:
    """(n, n): the paper's sum over single messages, which can be too small; 1 on the diagonal."""
    weights = mixing_matrix(graph)
    losses, power, near = (
        np.zeros_like(weights),
        np.eye(len(graph)),
        nx.to_numpy_array(graph, range(len(graph))),
    )
    for _ in range(steps):
        losses += (power**2 / np.square(power).sum(axis=1)) @ near
        power = weights @ power
    np.fill_diagonal(losses, 1.0)
    return losses


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The ε that a run is to keep between nodes.

    A node's data as a whole are hidden, not a single sample: an update is scaled down to the length `bound`, so that two data sets are Δ = 2·bound apart.

    Attributes:
        epsilon: after all rounds, at `delta`.
        bound: the length to which the update of a round is scaled down if it is longer.
        pairs: whose ε that is: the largest of all pairs, or their mean, as the paper reports it. A neighbour hears z_u itself, so the largest is that of local differential privacy, which
            holds whatever nodes do with what they hear. The mean counts rounds one by one, each as if nothing of it could be heard in later ones; it promises less than it seems.
    """

    epsilon: float
    bound: float
    delta: float = 1e-5
    pairs: Pairs = "max"

    def __post_init__(self) -> None:
        if not 0.0 < self.epsilon < math.inf:
            raise ConfigError(
                f"epsilon is {self.epsilon}, but it must be above 0; leave it out to train without noise"
            )
        if not 0.0 < self.delta < 1.0:
            raise ConfigError(
                f"delta is {self.delta}, but it must be between 0 and 1; use less than one over the number of nodes"
            )
        if not 0.0 < self.bound < math.inf:
            raise ConfigError(
                f"bound is {self.bound}, but noise hides nothing unless updates are scaled down: give a length above 0, for example 1.0"
            )

    def sigma(self, losses: Losses, rounds: int) -> float:
        """The σ with which `rounds` rounds keep the target.

        A round costs ρ = q·Δ²/2σ² (zero-concentrated differential privacy), rounds add up, and ε = ρ + 2√(ρ·ln(1/δ)). With s² = rounds·Δ²/2σ² the target is a quadratic equation in s.
        """
        q = self._pairs(losses)
        first, second = float(np.mean(q)), float(np.mean(np.sqrt(q))) * math.sqrt(math.log(1 / self.delta))
        s = (math.sqrt(second**2 + first * self.epsilon) - second) / first
        return 2 * self.bound * math.sqrt(rounds / 2) / s

    def spent(self, sigma: float, losses: Losses, rounds: int) -> float:
        """ε after `rounds`, of the pairs that the target is about."""
        rho = self._pairs(losses) * rounds * (2 * self.bound) ** 2 / (2 * sigma**2)
        return float(np.mean(rho + 2 * np.sqrt(rho * math.log(1 / self.delta))))

    def _pairs(self, losses: Losses) -> Losses:
        others = losses[~np.eye(len(losses), dtype=np.bool_)]
        return np.array([others.max()]) if self.pairs == "max" else others
