"""What one node sees of its neighbours: who sent which positions, and under masks only the sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from cesar.errors import ConfigError
from cesar.experiment.config import Experiment
from cesar.experiment.recording import RecordedRound
from cesar.methods import Cesar
from cesar.settings import MethodSection


def sent_to(
    round_: RecordedRound, receiver: int, method: MethodSection
) -> tuple[list[int], NDArray[np.bool_]]:
    """The neighbours of a receiver, ascending, and I_{i→r} of each: (neighbours, d)."""
    neighbours = sorted(round_.graph[receiver])
    if method.sparsifier == "coordinated":
        return neighbours, np.repeat(round_.selected[receiver, None], len(neighbours), axis=0)
    chosen = round_.selected[neighbours]
    if method.name == "dpsgd":
        return neighbours, chosen
    return neighbours, chosen & (chosen.sum(axis=0) > _masks(method, round_.graph))


def _masks(method: MethodSection, graph: nx.Graph) -> int:
    """s, the masks that a value carried."""
    settled = method.settled(graph)
    return settled.masks if isinstance(settled, Cesar) else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a receiver r holds after T rounds of masked averaging.

    Attributes:
        members: the k nodes that were its neighbours in some round.
        sent: (T, k, d), H_r(p, t): whose value is in the sum.
        sums: (T, d) of the members' values; 0 where nobody sent.
        own: (T, d), its own models when it averaged.
    """

    members: list[int]
    sent: NDArray[np.bool_]
    sums: NDArray[np.float64]
    own: NDArray[np.float64]


def view_of(rounds: Sequence[RecordedRound], receiver: int, method: MethodSection) -> View:
    """What a receiver saw. The sums are made of the recorded models, at the positions that the engine
    shares; they equal what the engine unmasks up to the rounding of its ring.
    """
    members = sorted({j for round_ in rounds for j in round_.graph[receiver]})
    shape = (len(rounds), rounds[0].models.shape[1])
    sent = np.zeros((shape[0], len(members), shape[1]), dtype=np.bool_)
    sums = np.zeros(shape)
    for t, round_ in enumerate(rounds):
        neighbours, positions = sent_to(round_, receiver, method)
        sent[t, np.searchsorted(members, neighbours)] = positions
        sums[t] = np.where(positions, round_.models[neighbours], 0.0).sum(axis=0, dtype=np.float64)
    own = np.stack([round_.models[receiver] for round_ in rounds]).astype(np.float64)
    return View(members=members, sent=sent, sums=sums, own=own)


def check_masked(experiment: Experiment, method: MethodSection) -> None:
    """Refuse runs whose sums cannot be told from a recording."""
    if method.name == "dpsgd":
        raise ConfigError(f"{method.title} sends models in the clear; there are no sums to solve")
    if experiment.faults.crash_rate > 0:
        raise ConfigError(
            "nodes crashed in this run, so its sums are not recorded; run it with crash_rate = 0"
        )
