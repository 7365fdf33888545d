"""Nodes that lie: what they hand in instead of what they have trained, for comparisons of defences.

Let x be a node's model before it trains, u its update, and ū and s the mean and the standard deviation of the honest nodes' updates, parameter by
parameter. Attackers know these: the attacks are those of an enemy who sees everything.

    flip        x − f·u, f = 1: bit or sign flipping; with f = 10 it turns the sum of a small cell
    labels      trains with label c − 1 − y in place of y, of c labels
    little      x + ū − f·s, f = 1.5: a little is enough, where it hides among the honest (Baruch et al., 2019)
    product     x − f·ū, f = 0.1: a small step against the honest mean (Xie et al., 2020)
    dissensus   x + u − f·(mean honest model − x), f = 1: away from the others (after He et al., 2022, who send each neighbour another model)
    scale       x + f·u, f = 64
    left-out    nobody lies: the nodes that would, and with cells all members of their cells, are not there
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from cesar.base.errors import ConfigError
from cesar.base.seeds import SeedTree
from cesar.graph.cells import CellPlan
from cesar.sim.nodes import Models

Attack = Literal["flip", "labels", "little", "product", "dissensus", "scale", "left-out"]
FACTORS: dict[Attack, float] = {"flip": 1.0, "little": 1.5, "product": 0.1, "dissensus": 1.0, "scale": 64.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attackers:
    """Who lies, and how.

    Attributes:
        nodes: the liars.
        silent: nodes that are not there; see `left-out`.
    """

    kind: Attack
    nodes: frozenset[int]
    factor: float = 1.0
    silent: frozenset[int] = frozenset()

    @classmethod
    def drawn(
        cls, kind: Attack, count: int, factor: float | None, nodes: int, plan: CellPlan | None, seed: int
    ) -> Attackers:
        """Nodes at random, at most one in a cell: cells are made for as many liars as their members outvote.

        Raises:
            ConfigError: more liars than nodes, or than cells.
        """
        order = SeedTree(seed).generator("attackers").permutation(nodes).tolist()
        cells = plan.cells if plan is not None else tuple((node,) for node in range(nodes))
        places = {node: number for number, cell in enumerate(cells) for node in cell}
        if count > len(cells):
            what = "cells" if plan is not None else "nodes"
            raise ConfigError(f"{count} attackers cannot be spread over {len(cells)} {what}; take fewer")
        chosen: dict[int, int] = {}
        for node in order:
            if len(chosen) < count:
                chosen.setdefault(places[node], node)
        liars = frozenset(chosen.values())
        silent = frozenset(node for number in chosen for node in cells[number])
        if kind != "left-out":
            return cls(kind=kind, nodes=liars, factor=FACTORS.get(kind, 1.0) if factor is None else factor)
        return cls(kind=kind, nodes=frozenset(), silent=silent)

    @property
    def tested_without(self) -> frozenset[int]:
        """Whose models say nothing about the honest."""
        return self.nodes | self.silent

    def lie(self, before: Models, models: Models) -> None:
        """Replace what the liars have trained; row i of both is node i."""
        liars = sorted(self.nodes)
        if not liars or self.kind in ("labels", "left-out"):
            return
        honest = np.array([node for node in range(len(models)) if node not in self.nodes])
        own = models[liars] - before[liars]
        match self.kind:
            case "flip":
                models[liars] = before[liars] - self.factor * own
            case "scale":
                models[liars] = before[liars] + self.factor * own
            case "dissensus":
                models[liars] += self.factor * (before[liars] - before[honest].mean(axis=0))
            case _:
                updates = models[honest] - before[honest]
                mean = updates.mean(axis=0)
                if self.kind == "product":
                    models[liars] = before[liars] - self.factor * mean
                else:
                    models[liars] = before[liars] + mean - self.factor * updates.std(axis=0)


def clipped_gossip(models: Models, graph: nx.Graph, liars: int) -> Models:
    """A step of self-centred clipping (He, Karimireddy and Jaggi, 2022), in the clear: every node adds the weighted differences to its
    neighbours, each clipped to a length of its own choice.

    With δ the weight of the liars, the length is √(Σ w·d² / δ) over all neighbours but the furthest: those who may lie.

    Args:
        liars: how many neighbours of a node may lie.
    """
    after = models.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # liars may send anything
        for node in graph:
            near = sorted(graph[node])
            weights = np.array([1 / (1 + max(graph.degree[node], graph.degree[other])) for other in near])
            away = models[near].astype(np.float64) - models[node]
            lengths = np.sqrt(np.square(away).sum(axis=1))
            away[~np.isfinite(lengths)] = 0.0
            order = np.argsort(lengths)
            kept, last = order[: len(near) - liars], order[len(near) - liars :]
            limit = np.sqrt((weights[kept] * lengths[kept] ** 2).sum() / weights[last].sum())
            shares: NDArray[np.float64] = np.minimum(1.0, limit / np.maximum(lengths, 1e-300))
            after[node] += (weights * shares) @ away
        result: Models = after.astype(np.float32)
    return result
