"""Handwritten digits on real peers, and the same training in the simulator, so that both can be compared.

    cesar peer run peer-3 --train cesar_lab.run.peers:train --set rounds=60

Partition, first model and batches follow from the seed as in `cesar run`; only keys and masks differ.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import partial

import networkx as nx
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cesar.base import files
from cesar.base.seeds import SeedTree
from cesar.methods import SETTLE_ROUNDS, SETTLE_SHARE, Method
from cesar.peer.api.peer import Peer
from cesar.sim.faults import Faults
from cesar_lab.data import datasets, partition
from cesar_lab.data.samples import Dataset
from cesar_lab.learn import models
from cesar_lab.learn.tasks import loss, score
from cesar_lab.learn.training import Batches, Sgd
from cesar_lab.run.host import Setup
from cesar_lab.run.simulation import Simulation, local_backend

RESULT = "result.json"
_TEST_EVERY = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What all peers must train with alike.

    Attributes:
        first: number of the first round, for a peer that comes back; by default the one that it joins in.
        settle: rounds of averaging without training that follow.
    """

    rounds: int = 60
    settle: int = SETTLE_ROUNDS
    learning_rate: float = 0.1
    batch_size: int = 8
    seed: int = 1
    first: int | None = None

    def prepare(self, nodes: int) -> tuple[Dataset, nn.Module, list[NDArray[np.int64]]]:
        """The data, the model that everybody starts with, and whose samples are whose."""
        seeds = SeedTree(self.seed)
        data = datasets.load("digits")
        module = models.build("digits-mlp", data, seed=int.from_bytes(seeds.bytes(7, "init"), "little"))
        return data, module, partition.iid(len(data.train), nodes, seeds.generator("partition"))


def train(peer: Peer, **settings: float) -> None:
    """Train until `rounds` rounds are over, settle, and leave the outcome in result.json; settings are those of
    `Recipe`. A peer that was away trains or settles with the others, wherever they are.
    """
    recipe = Recipe(**settings)  # type: ignore[arg-type]
    torch.set_num_threads(1)
    data, model, parts = recipe.prepare(peer.peers)
    if peer.resumed:
        peer.restore(model)
    peer.start_from(model)
    batches = Batches(parts[peer.place], recipe.batch_size, SeedTree(recipe.seed), peer.place)
    optimiser = torch.optim.SGD(model.parameters(), lr=recipe.learning_rate)
    first, begin = peer.round if recipe.first is None else recipe.first, time.monotonic()
    step = (peer.round - first) * peer.every
    while peer.round < first + recipe.rounds:
        optimiser.zero_grad()
        loss(data.task, model, data.train.take(batches.at(step)).fields).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        step += 1
        if peer.due():
            peer.average(model)
            step = (peer.round - first) * peer.every  # a peer that was away goes on where the others are
            if (peer.round - first) % _TEST_EVERY == 0:
                peer.show(**_test(data, model))
                peer.save(model)
    peer.settle(model, rounds=first + recipe.rounds + recipe.settle - peer.round)
    metrics = _test(data, model)
    peer.show(**metrics)
    peer.save(model)
    totals = peer.totals()
    outcome = {
        "node": peer.id,
        "round": peer.round,
        "rounds": totals["rounds_done"],
        **metrics,
        "bytes": sum(totals["bytes"].values()),
        "dropouts": totals["dropouts"],
        "seconds": time.monotonic() - begin,
    }
    files.write(peer.folder / RESULT, (json.dumps(outcome, indent=2) + "\n").encode())


def _test(data: Dataset, model: nn.Module) -> dict[str, float]:
    model.eval()
    metrics = score(data, model, data.test).metrics(data.task)
    model.train()
    return metrics


def simulate(recipe: Recipe, graph: nx.Graph, method: Method, steps: int) -> float:
    """The accuracy that the simulator reaches with the same recipe, mean over the nodes."""
    data, module, parts = recipe.prepare(len(graph))
    simulation = Simulation(
        Setup(
            data=data,
            module=module,
            parts=parts,
            sgd=Sgd(learning_rate=recipe.learning_rate, batch_size=recipe.batch_size, steps=steps),
            graph=lambda _: nx.convert_node_labels_to_integers(graph, ordering="sorted"),
            dynamic=False,
            method=method,
            faults=Faults(),
            seed=recipe.seed,
            settle_from=recipe.rounds,
            settle_share=SETTLE_SHARE,
        ),
        partial(local_backend, workers=1),
    )
    try:
        for _ in simulation.run(recipe.rounds + recipe.settle):
            pass
        return simulation.evaluate()["accuracy"]
    finally:
        simulation.close()
