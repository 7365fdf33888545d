"""What one node sees of its neighbours: their values in the clear, or under masks sums of them.

A recording holds models, selections and the graph. What else decides who saw what follows from the experiment and the
run's seed, by the simulator's own code: the method, and who crashed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cesar.base.errors import ConfigError
from cesar.base.seeds import SeedTree
from cesar.base.types import NodeId, RoundNo
from cesar.graph.cells import CELLS
from cesar.graph.neighbourhood import mean_degree, neighbourhoods
from cesar.methods import Method
from cesar.protocol.wire import Kind
from cesar.sim.faults import Departure, kinds_that_leave
from cesar_lab.run import execute as run
from cesar_lab.run.config import Experiment, MethodTable
from cesar_lab.run.recording import RecordedRound

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A recorded round and how it was averaged.

    Attributes:
        true: (n, d), the models without noise; what entered the averaging is in the recording.
        sent: (sender, receiver) → what the noise that is meant for this receiver adds; it is in no recording.
        method: settled for the round's graph.
        steps: how often it averages in a round.
        leaves: which frames left their senders.
        crashed: who vanished in this round, and keeps its model.
    """

    recorded: RecordedRound
    true: NDArray[np.float32]
    sent: Callable[[int, int], NDArray[np.float32] | float]
    method: Method
    steps: int
    leaves: Departure
    crashed: frozenset[int]


def scene_of(experiment: Experiment, section: MethodTable, seed: int, recorded: RecordedRound) -> Scene:
    """How a round of a run was averaged.

    Raises:
        ConfigError: in cells, where there are no neighbours.
    """
    if section.name == CELLS:
        raise ConfigError(
            f"{section.title}: members of cells see no neighbour's model; use cesar attack filter"
        )
    graph, round_ = recorded.graph, RoundNo(recorded.number - 1)
    nodes, size = recorded.models.shape
    # What D-PSGD selects stands in the recording, so any share will do.
    method = run.build_method(experiment, section, seed, size=size, measured=1.0)
    if recorded.number > experiment.rounds:
        method = method.settled(experiment.settle_share, mean_degree(graph))
    crashes = run.faults_of(experiment).draw(seed, round_, nodes)
    gossip = run.gossip_of(experiment, section, seed)

    def sent(sender: int, receiver: int) -> NDArray[np.float32] | float:
        if not gossip.correlated:
            return 0.0
        return gossip.sent(SeedTree(seed), round_, graph, sender, size)[receiver]

    return Scene(
        recorded=recorded,
        true=recorded.models - gossip.drawn(SeedTree(seed), round_, range(nodes), size),
        sent=sent,
        method=method.for_graph(graph),
        steps=section.gossip_steps,
        leaves=kinds_that_leave(crashes, round_, neighbourhoods(graph), SeedTree(seed)),
        crashed=frozenset(map(int, crashes)),
    )


def as_sent(scene: Scene, receiver: int) -> NDArray[np.float32]:
    """The models of a receiver's neighbours, ascending, as they were sent to it: (neighbours, d)."""
    return np.stack(
        [
            scene.recorded.models[node] + scene.sent(node, receiver)
            for node in sorted(scene.recorded.graph[receiver])
        ]
    ).astype(np.float32)


def sent_to(scene: Scene, receiver: int) -> tuple[list[int], Flags]:
    """The neighbours of a receiver, ascending, and where it has something of each, under masks in a sum: (neighbours, d)."""
    neighbours = sorted(scene.recorded.graph[receiver])
    held = [np.zeros((len(neighbours), scene.recorded.models.shape[1]), dtype=np.bool_)]
    return neighbours, np.any(held + sums_to(scene, receiver), axis=0)


def sums_to(scene: Scene, receiver: int) -> list[Flags]:
    """The sums that a receiver can read, each as (neighbours, d): whose values are in it. In the clear, of one each."""
    neighbours, method = sorted(scene.recorded.graph[receiver]), scene.method.masked
    if method is None:
        return [
            np.where(np.arange(len(neighbours))[:, None] == row, scene.recorded.selected[node], False)
            for row, node in enumerate(neighbours)
            if scene.leaves(NodeId(node), NodeId(receiver), Kind.PLAIN_SHARE)
        ]
    chosen = scene.recorded.selected[neighbours]
    # Where somebody selected and sent nothing, its masks stay on what the others sent.
    gone = [not scene.leaves(NodeId(i), NodeId(receiver), Kind.SHARE) for i in neighbours]
    return [chosen & (chosen.sum(axis=0) > method.masks) & ~chosen[gone].any(axis=0)]


def mixing(scene: Scene, sums: Sequence[Sequence[Flags]], block: slice) -> NDArray[np.float64]:
    """(P, n, n): what averaging makes of all models, at the positions of a block.

    Args:
        sums: of every receiver, from `sums_to`.
    """
    graph, method, nodes = scene.recorded.graph, scene.method, len(sums)
    wide = np.empty(scene.recorded.models.shape[1])[block]
    matrices = np.zeros((nodes, nodes, len(wide)))
    for r, held in enumerate(sums):
        row, neighbours = matrices[r], sorted(graph[r])
        if r not in scene.crashed and _averages(scene, r):
            for flags in held:
                row[neighbours] += flags[:, block]
        if method.weights == "arrived":
            row[r] = 1.0
            row /= row.sum(axis=0)
            continue
        # Every neighbour has its Metropolis–Hastings weight, and the own value stands for what did not arrive.
        for j in neighbours:
            row[j] /= 1 + (
                max(graph.degree[r], graph.degree[j]) if method.masked is None else len(neighbours)
            )
        row[r] = 1.0 - row.sum(axis=0)
    return np.ascontiguousarray(matrices.transpose(2, 0, 1))


def _averages(scene: Scene, receiver: int) -> bool:
    """Whether a receiver uses its sums: with dropout "abort" only if all are there, and whole."""
    method, r = scene.method.masked, NodeId(receiver)
    if method is None or method.dropout == "parameter":
        return True
    return all(scene.leaves(NodeId(i), r, Kind.SHARE) for i in scene.recorded.graph[receiver])


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a receiver r holds after T rounds of averaging: its own models and E sums.

    Attributes:
        members: the k nodes that were its neighbours in some round.
        rounds: (E,) from which of the T rounds each sum is.
        sent: (E, k, d): whose value is in the sum.
        sums: (E, d) of the members' values; 0 where nobody sent.
        own: (T, d), its own models when it averaged.
    """

    members: list[int]
    rounds: NDArray[np.int64]
    sent: Flags
    sums: NDArray[np.float64]
    own: NDArray[np.float64]


def view_of(scenes: Sequence[Scene], receiver: int) -> View:
    """What a receiver saw. The sums are made of the recorded models, at the positions that the engine
    shares; they equal what the engine unmasks up to the rounding of its ring.
    """
    members = sorted({j for scene in scenes for j in scene.recorded.graph[receiver]})
    held: list[tuple[int, list[int], Flags]] = []
    for t, scene in enumerate(scenes):
        neighbours = sorted(scene.recorded.graph[receiver])
        held += [(t, neighbours, flags) for flags in sums_to(scene, receiver)]
    size = scenes[0].recorded.models.shape[1]
    sent = np.zeros((len(held), len(members), size), dtype=np.bool_)
    sums = np.zeros((len(held), size))
    heard = [as_sent(scene, receiver) for scene in scenes]
    for e, (t, neighbours, flags) in enumerate(held):
        sent[e, np.searchsorted(members, neighbours)] = flags
        models = heard[t]
        sums[e] = np.where(flags, models, 0.0).sum(axis=0, dtype=np.float64)
    return View(
        members=members,
        rounds=np.array([t for t, _, _ in held], dtype=np.int64),
        sent=sent,
        sums=sums,
        own=np.stack([scene.true[receiver] for scene in scenes]).astype(np.float64),
    )


def check_recorded(experiment: Experiment, method: MethodTable) -> None:
    """Refuse runs whose sums cannot be told from a recording."""
    if experiment.faults.crash_rate == 0 or method.name == "dpsgd":
        return
    if experiment.faults.crash_point in ("before_announce", "after_announce"):
        raise ConfigError(
            f"{method.title}: nodes crashed {experiment.faults.crash_point.replace('_', ' ')}, so some pairs did not "
            'agree on masks, which is not recorded; run it with crash_point = "after_coordination"'
        )
