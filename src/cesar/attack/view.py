"""What one node sees of its neighbours: their values in the clear, or under masks sums of them.

A recording holds models, selections and the graph. What else decides who saw what follows from the experiment and the
run's seed, by the simulator's own code: the method, positions that are drawn for fixed groups, and who crashed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cesar import bits
from cesar.crypto.keys import RoundId
from cesar.errors import ConfigError
from cesar.experiment import run
from cesar.experiment.config import Experiment
from cesar.experiment.recording import RecordedRound
from cesar.methods import DPSGD, Cesar, SecureAggregation, settling
from cesar.seeds import SeedTree
from cesar.settings import MethodSection
from cesar.sim.ensemble import noise_of
from cesar.sim.faults import Departure, kinds_that_leave
from cesar.sim.secrets import Secrets
from cesar.sparsify import CoordinatedSubsampling, RandomSubsampling
from cesar.topology import neighbourhoods
from cesar.types import NodeId, RoundNo
from cesar.wire import Kind

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A recorded round and how it was averaged.

    Attributes:
        true: (n, d), the models without noise; what entered the averaging is in the recording.
        method: settled for the round's graph.
        attempt: the round's name, from which positions for groups are drawn.
        leaves: which frames left their senders.
    """

    recorded: RecordedRound
    true: NDArray[np.float32]
    method: Cesar | DPSGD
    attempt: RoundId
    leaves: Departure


def scene_of(experiment: Experiment, section: MethodSection, seed: int, recorded: RecordedRound) -> Scene:
    """How a round of a run was averaged."""
    graph, round_ = recorded.graph, RoundNo(recorded.number - 1)
    nodes, size = recorded.models.shape
    # What D-PSGD selects stands in the recording, so any share will do.
    method = run.build_method(experiment, section, seed, size=size, measured=1.0)
    if recorded.number > experiment.rounds:
        method = settling(method, experiment.settle_share, run.mean_degree(graph))
    settled = method.for_graph(graph)
    crashes = run.faults_of(experiment).draw(seed, round_, nodes)
    true = recorded.models
    if isinstance(settled, DPSGD) and settled.noise:
        drawn = noise_of(SeedTree(seed), RoundNo(round_ * settled.gossip_steps), nodes, size)
        true = true - np.float32(settled.noise) * np.stack(list(drawn))
    return Scene(
        recorded=recorded,
        true=true,
        method=settled.as_cesar() if isinstance(settled, SecureAggregation) else settled,
        attempt=Secrets(seed).attempt(round_),
        leaves=kinds_that_leave(crashes, round_, neighbourhoods(graph), SeedTree(seed)),
    )


def sent_to(scene: Scene, receiver: int) -> tuple[list[int], Flags]:
    """The neighbours of a receiver, ascending, and where it has something of each, under masks in a sum: (neighbours, d)."""
    neighbours = sorted(scene.recorded.graph[receiver])
    held = [np.zeros((len(neighbours), scene.recorded.models.shape[1]), dtype=np.bool_)]
    return neighbours, np.any(held + _sums(scene, receiver), axis=0)


def _sums(scene: Scene, receiver: int) -> list[Flags]:
    """The sums that a receiver can read, each as (neighbours, d): whose values are in it. In the clear, of one each."""
    neighbours, method = sorted(scene.recorded.graph[receiver]), scene.method
    if isinstance(method, DPSGD):
        return [
            np.where(np.arange(len(neighbours))[:, None] == row, scene.recorded.selected[node], False)
            for row, node in enumerate(neighbours)
            if scene.leaves(NodeId(node), NodeId(receiver), Kind.PLAIN_SHARE)
        ]
    if method.groups is not None:
        return _group_sums(scene, method, receiver, neighbours)
    chosen = scene.recorded.selected[neighbours]
    if isinstance(method.sparsifier, CoordinatedSubsampling):
        chosen = np.repeat(scene.recorded.selected[receiver, None], len(neighbours), axis=0)
    # Where somebody selected and sent nothing, its masks stay on what the others sent.
    gone = [not scene.leaves(NodeId(i), NodeId(receiver), Kind.SHARE) for i in neighbours]
    return [chosen & (chosen.sum(axis=0) > method.masks) & ~chosen[gone].any(axis=0)]


def _group_sums(scene: Scene, method: Cesar, receiver: int, neighbours: list[int]) -> list[Flags]:
    """Complete groups alone: all members announced themselves, heard the terms and sent their shares."""
    assert method.groups is not None
    size, r = scene.recorded.models.shape[1], NodeId(receiver)
    groups = method.groups[r]
    drawn = None
    if isinstance(method.sparsifier, RandomSubsampling):
        drawn = method.sparsifier.in_turns(r, scene.attempt, size, len(groups))
    found = []
    for number, group in enumerate(groups):
        if not all(_takes_part(scene, i, r) for i in group):
            continue
        flags = np.zeros((len(neighbours), size), dtype=np.bool_)
        flags[np.searchsorted(neighbours, group)] = (
            bits.to_bools(drawn(number).words, size)
            if drawn is not None
            else scene.recorded.selected[list(group)].any(axis=0)
        )
        found.append(flags)
    return found


def _takes_part(scene: Scene, member: NodeId, receiver: NodeId) -> bool:
    return (
        scene.leaves(member, receiver, Kind.ANNOUNCE)
        and scene.leaves(receiver, member, Kind.GROUP_TERMS)
        and scene.leaves(member, receiver, Kind.SHARE)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a receiver r holds after T rounds of averaging: its own models and E sums.

    Attributes:
        members: the k nodes that were its neighbours in some round.
        groups: who is told apart by the graph and the settings alone: r's fixed groups, or all members together. Numbers
            are places in `members`.
        rounds: (E,) from which of the T rounds each sum is.
        sent: (E, k, d): whose value is in the sum.
        sums: (E, d) of the members' values; 0 where nobody sent.
        own: (T, d), its own models when it averaged.
    """

    members: list[int]
    groups: tuple[tuple[int, ...], ...]
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
        held += [(t, neighbours, flags) for flags in _sums(scene, receiver)]
    size = scenes[0].recorded.models.shape[1]
    sent = np.zeros((len(held), len(members), size), dtype=np.bool_)
    sums = np.zeros((len(held), size))
    for e, (t, neighbours, flags) in enumerate(held):
        sent[e, np.searchsorted(members, neighbours)] = flags
        models = scenes[t].recorded.models[neighbours]
        sums[e] = np.where(flags, models, 0.0).sum(axis=0, dtype=np.float64)
    return View(
        members=members,
        groups=_fixed_groups(scenes, receiver, members),
        rounds=np.array([t for t, _, _ in held], dtype=np.int64),
        sent=sent,
        sums=sums,
        own=np.stack([scene.true[receiver] for scene in scenes]).astype(np.float64),
    )


def _fixed_groups(scenes: Sequence[Scene], receiver: int, members: list[int]) -> tuple[tuple[int, ...], ...]:
    """The groups of a receiver if it had the same in all rounds, else one group of everybody."""
    tables = {
        scene.method.groups[NodeId(receiver)]
        for scene in scenes
        if isinstance(scene.method, Cesar) and scene.method.groups is not None
    }
    groups = tables.pop() if len(tables) == 1 else (tuple(map(NodeId, members)),)
    return tuple(tuple(members.index(node) for node in group) for group in groups)


def check_recorded(experiment: Experiment, method: MethodSection) -> None:
    """Refuse runs whose sums cannot be told from a recording."""
    if experiment.faults.crash_rate == 0 or method.name == "dpsgd":
        return
    if method.regroup_after is not None:
        raise ConfigError(
            f"{method.title}: who was left out of a group depends on rounds that are not recorded; "
            "run it with crash_rate = 0 or without regroup_after"
        )
    if method.group_size is None and experiment.faults.crash_point in ("before_announce", "after_announce"):
        raise ConfigError(
            f"{method.title}: nodes crashed {experiment.faults.crash_point.replace('_', ' ')}, so some pairs did not "
            'agree on masks, which is not recorded; run it with crash_point = "after_coordination", or with group_size'
        )
