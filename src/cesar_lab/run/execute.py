"""Running an experiment: every method and seed gets a run directory that says all there is to know.

    OUT/experiment.json            the resolved configuration
    OUT/METHOD/seed-K/metrics.csv  one row per test step; equal for equal configuration and seed, byte for byte
                      ledger.csv   one row per round: bytes by category (mean over nodes), measured share
                      timing.csv   one row per round: seconds
                      summary.json the end of it
                      versions.json
                      checkpoint.safetensors   all models, to go on from
                      recording/               rounds kept for attacks, if the file asks for it

A run that was killed goes on from its last checkpoint and ends with exactly the same metrics.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from torch import nn

from cesar.base.errors import ConfigError
from cesar.base.seeds import SeedTree
from cesar.base.types import __version__
from cesar.graph import named as graphs
from cesar.graph.neighbourhood import mean_degree
from cesar.methods import Method
from cesar.methods.noise import NoiseSpec
from cesar.peer.api.flat import Layout
from cesar.sim.ensemble import Ensemble
from cesar.sim.faults import Faults
from cesar_lab.data import datasets, partition
from cesar_lab.data.samples import Dataset
from cesar_lab.learn import models
from cesar_lab.learn.training import Sgd
from cesar_lab.run import recording
from cesar_lab.run.attackers import Attackers
from cesar_lab.run.config import Experiment, MethodTable, parse
from cesar_lab.run.host import Setup
from cesar_lab.run.journal import Journal, Row, write_json
from cesar_lab.run.machine import machine, peak_rss_bytes
from cesar_lab.run.noise import Gossip
from cesar_lab.run.pairwise import Losses, exact_losses
from cesar_lab.run.privacy import BUDGET_FILE, Budget, multiplier_for
from cesar_lab.run.simulation import BackendFactory, RoundRecord, Simulation, local_backend

CHECKPOINT_SECONDS = 300.0
"""A run is saved at every test step, and in between if that long has passed: test steps can be hours apart."""


class Observer(Protocol):
    """Somebody who wants to see a run while it goes on."""

    def started(self, title: str, seed: int, rounds: int, done: int) -> None:
        """A run begins, or goes on after `done` rounds."""

    def round_done(self, record: RoundRecord, sent: float) -> None:
        """A round is over; `sent` is what a node has sent in all."""

    def tested(self, row: Row) -> None:
        """A row of metrics."""

    def finished(self, summary: dict[str, object]) -> None:
        """A run has ended."""


@dataclass(frozen=True, slots=True)
class Run:
    """One method with one seed."""

    method: MethodTable
    seed: int
    folder: Path


def execute(
    experiment: Experiment,
    out: Path,
    *,
    data_dir: Path | None = None,
    workers: int | None = None,
    observers: Sequence[Observer] = (),
    backend: BackendFactory | None = None,
    trust_code: bool = False,
) -> list[dict[str, object]]:
    """Run everything that is not finished yet; the summaries of all runs.

    Args:
        workers: threads in this process.
        trust_code: whether a model of its own (`package.module:factory`) may be imported.
        backend: makes what the nodes live in instead of this process, see `cesar_lab.run.cluster.connect`; results do not depend on it.
    """
    backend = backend or partial(local_backend, workers=workers)
    data = load_data(experiment, data_dir)
    runs = runs_of(experiment, out)
    for run in runs:
        _check(experiment, run, data, trust_code)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "experiment.json", experiment.model_dump(mode="json"))
    summaries: list[dict[str, object]] = []
    for run in runs:
        measured = _measured_share(experiment, run.method, summaries)
        summaries.append(_execute_run(experiment, run, data, measured, backend, observers, trust_code))
    return summaries


def runs_of(experiment: Experiment, out: Path) -> list[Run]:
    """All runs of an experiment, in the order in which they are done."""
    return [
        Run(method, seed, out / method.folder / f"seed-{seed}")
        for method in sorted(experiment.method, key=lambda m: m.name != "cesar")  # CESAR's share comes first
        for seed in experiment.seeds
    ]


def read(out: Path) -> Experiment:
    """The experiment of a directory that `execute` has made."""
    try:
        return parse(json.loads((out / "experiment.json").read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ConfigError(
            f"{out} holds no experiment.json; --resume takes the directory of an earlier run"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{out}/experiment.json is damaged: {error}") from None


def load_data(experiment: Experiment, data_dir: Path | None) -> Dataset:
    """What the experiment trains and tests on."""
    section = experiment.data
    return datasets.load(
        section.dataset, data_dir, train_limit=section.train_limit, test_limit=section.test_limit
    )


def _partition(experiment: Experiment, data: Dataset, seeds: SeedTree) -> list[NDArray[np.int64]]:
    section, nodes = experiment.data, experiment.topology.nodes
    draw = seeds.generator("partition")
    match section.partition:
        case "iid":
            return partition.iid(len(data.train), nodes, draw)
        case "user":
            if data.users is None:
                raise ConfigError(f'{data.name} names no users; use data.partition = "iid"')
            return partition.by_user(data.users, nodes, draw)
        case kind:
            if data.labels is None:
                raise ConfigError(f'{data.name} has no labels; use data.partition = "iid" or "user"')
            if kind == "shards":
                return partition.shards(data.labels, nodes, draw)
            if kind == "kshard":
                return partition.slices(data.labels, nodes, draw)
            return partition.dirichlet(data.labels, nodes, draw, alpha=section.dirichlet_alpha)


def graph_of(experiment: Experiment, seed: int) -> Callable[[int], nx.Graph]:
    """The aggregation graph of each round."""
    section, seeds = experiment.topology, SeedTree(seed)

    def build(*path: int) -> nx.Graph:
        return graphs.build(
            section.kind,
            section.nodes,
            seeds.generator("graph", *path),
            degree=section.degree,
            rewire=section.rewire,
            path=section.path,
        )

    if section.dynamic:
        return build
    fixed = build()
    return lambda _: fixed


def build_model(experiment: Experiment, data: Dataset, seed: int, *, trust_code: bool = False) -> nn.Module:
    """The model that all nodes start from."""
    drawn = int.from_bytes(SeedTree(seed).bytes(7, "init"), "little")
    section = experiment.model
    return models.build(section.name, data, seed=drawn, weights=section.weights, trust_code=trust_code)


def build_method(
    experiment: Experiment, section: MethodTable, seed: int, *, size: int, measured: float | None = None
) -> Method:
    """A method as a run has it, before it knows its graph.

    Args:
        size: d.
        measured: the share that D-PSGD takes over from CESAR.
    """
    first = graph_of(experiment, seed)(0)
    return section.build(mean_degree(first), measured, size=size, graph=first)


def _setup(
    experiment: Experiment, run: Run, data: Dataset, measured: float | None, trust_code: bool
) -> Setup:
    seeds, training = SeedTree(run.seed), experiment.training
    graph = graph_of(experiment, run.seed)
    module = build_model(experiment, data, run.seed, trust_code=trust_code)
    size, section = Layout.of(module).size, run.method
    parts = _partition(experiment, data, seeds)
    budget = budget_of(experiment, section, size, min(map(len, parts)), run.seed)
    method = (
        build_method(experiment, section, run.seed, size=size, measured=measured)
        if budget is None
        else replace(section.cells(), noise=budget.noise)
    )
    return Setup(
        data=data,
        module=module,
        parts=parts,
        sgd=Sgd(
            learning_rate=training.learning_rate,
            batch_size=training.batch_size,
            steps=training.steps_per_round,
            fresh=training.batches == "fresh",
            clip=experiment.privacy.clip,
        ),
        graph=graph,
        dynamic=experiment.topology.dynamic,
        method=method,
        faults=faults_of(experiment),
        seed=run.seed,
        gossip=gossip_of(experiment, section, run.seed),
        attackers=_attackers(experiment, run),
        budget=budget,
        spent=_spent(experiment, section, run.seed),
        settle_from=experiment.rounds,
        settle_share=experiment.settle_share,
    )


def gossip_of(experiment: Experiment, section: MethodTable, seed: int) -> Gossip:
    """How the rounds of a run average, with the noise that a target asks for on its graph."""
    target = section.target
    if target is None:
        return section.gossip
    sigma = target.sigma(_losses(experiment, section, seed), experiment.all_rounds)
    return replace(section.gossip, noise=sigma)


def _losses(experiment: Experiment, section: MethodTable, seed: int) -> Losses:
    """Of all pairs in one round. The largest is 1, for neighbours hear what a node sends: it needs no graph."""
    nodes = experiment.topology.nodes
    if section.pairs == "max":
        return np.ones((nodes, nodes))
    return exact_losses(graph_of(experiment, seed)(0), section.gossip_steps)


def _spent(experiment: Experiment, section: MethodTable, seed: int) -> Callable[[int], float] | None:
    """ε between nodes by the number of rounds; None without a target."""
    target = section.target
    if target is None:
        return None
    losses, sigma = _losses(experiment, section, seed), gossip_of(experiment, section, seed).noise
    return lambda rounds: target.spent(sigma, losses, rounds)


def budget_of(
    experiment: Experiment, section: MethodTable, size: int, fewest: int, seed: int
) -> Budget | None:
    """What a run with noise spends on a sample; None without noise.

    Args:
        size: d.
        fewest: samples of the node that has fewest: each of them is used most often.

    Raises:
        ConfigError: the target cannot be reached, or Opacus is not installed.
    """
    privacy, training = experiment.privacy, experiment.training
    if not privacy.on:
        return None
    assert privacy.clip is not None
    rate = min(1.0, training.batch_size / fewest)
    wanted = privacy.multiplier
    if wanted is None:
        assert privacy.epsilon is not None
        wanted = multiplier_for(privacy.epsilon, rate, experiment.rounds, privacy.delta)
    step = training.learning_rate * privacy.clip
    noise = NoiseSpec(
        multiplier=wanted, sensitivity=step / training.batch_size, bound=2 * step, delta=privacy.delta
    )
    if privacy.epsilon is not None:  # what rounding to the grid costs is added
        raised = wanted * (1 + 2 * noise.step * math.sqrt(size) / noise.sensitivity)
        noise = replace(noise, multiplier=raised)
    plan = section.cells().plan(experiment.topology.nodes, seed=seed)
    members = min(map(len, plan.cells))
    return Budget(noise=noise, size=size, rate=rate, members=members, honest=members - plan.collusion)


def _attackers(experiment: Experiment, run: Run) -> Attackers | None:
    """Who lies in a run; the same nodes with every method that has the same cells."""
    section, nodes = experiment.attackers, experiment.topology.nodes
    if not section.count:
        return None
    plan = run.method.cells().plan(nodes, seed=run.seed) if run.method.name == "cells" else None
    return Attackers.drawn(section.kind, section.count, section.factor, nodes, plan, run.seed)


def faults_of(experiment: Experiment) -> Faults:
    """Who crashes in which round, once it is drawn with a run's seed."""
    section, rounds = experiment.faults, range(experiment.all_rounds)
    calm = [number for number in rounds if experiment.tests(number + 1)] if section.calm_tests else ()
    return Faults(rate=section.crash_rate, point=section.crash_point, calm=frozenset(calm))


def _check(experiment: Experiment, run: Run, data: Dataset, trust_code: bool) -> None:
    """Make everything once, so that what is wrong shows before anything is trained."""
    measured = 0.5 if experiment.match_share else None
    setup = _setup(experiment, run, data, measured, trust_code)
    Ensemble(setup.graph(0), setup.method, setup.size, workers=1, samples=setup.samples).close()


def _measured_share(
    experiment: Experiment, method: MethodTable, summaries: list[dict[str, object]]
) -> float | None:
    """With `match_share`: what CESAR with the same sparsifier shared while it trained, mean over its seeds."""
    if not experiment.match_share or method.name != "dpsgd" or method.sparsifier is None:
        return None
    titles = {m.title for m in experiment.method if m.name == "cesar" and m.sparsifier == method.sparsifier}
    shares = [_trained_share(summary) for summary in summaries if summary["title"] in titles]
    return float(np.mean(shares))


def _trained_share(summary: dict[str, object]) -> float:
    """Settling rounds have a share of their own; runs of older versions have none."""
    before = summary.get("before_settling")
    trained = before if isinstance(before, dict) and "shared" in before else summary
    return float(str(trained["shared"]))


def _execute_run(
    experiment: Experiment,
    run: Run,
    data: Dataset,
    measured: float | None,
    backend: BackendFactory,
    observers: Sequence[Observer],
    trust_code: bool,
) -> dict[str, object]:
    finished = run.folder / "summary.json"
    if finished.exists():
        summary: dict[str, object] = json.loads(finished.read_text(encoding="utf-8"))
        return summary
    run.folder.mkdir(parents=True, exist_ok=True)
    write_json(run.folder / "versions.json", versions())
    setup = _setup(experiment, run, data, measured, trust_code)
    if setup.budget is not None:
        write_json(run.folder / BUDGET_FILE, setup.budget.to_json())
    journal = Journal.open(run.folder)
    for observer in observers:
        observer.started(run.method.title, run.seed, experiment.all_rounds, journal.next_round)
    with closing(
        Simulation(setup, backend, state=journal.state, next_round=journal.next_round)
    ) as simulation:
        _train(experiment, run, setup, simulation, journal, observers)
    summary = _summary(experiment, run, setup) | journal.totals(experiment)
    write_json(finished, summary)
    for observer in observers:
        observer.finished(summary)
    return summary


def _train(
    experiment: Experiment,
    run: Run,
    setup: Setup,
    simulation: Simulation,
    journal: Journal,
    observers: Sequence[Observer],
) -> None:
    """Round after round until all have settled, with tests and checkpoints on the way."""
    saved = time.monotonic()
    for record in () if journal.settled(experiment) else simulation.run(experiment.all_rounds):
        done = simulation.next_round
        journal.add(record)
        if experiment.recording.keeps(done, experiment.rounds):
            graph = setup.graph(record.round_)
            recording.write(run.folder, done, simulation.contributions, graph, setup.parts, simulation.state)
        for observer in observers:
            observer.round_done(record, journal.sent_in_all)
        if experiment.tests(done):
            started = time.perf_counter()
            metrics = simulation.evaluate(experiment.test_samples(done), experiment.evaluation.summaries)
            if setup.budget is not None:
                metrics["epsilon"] = setup.budget.epsilon(min(done, experiment.rounds))
            if setup.spent is not None:
                metrics["epsilon"] = setup.spent(done)
            row = journal.test(done, metrics, time.perf_counter() - started)
            for observer in observers:
                observer.tested(row)
        if experiment.tests(done) or time.monotonic() - saved > CHECKPOINT_SECONDS:
            journal.checkpoint(simulation.state, done)
            saved = time.monotonic()
        if journal.settled(experiment):
            break


def _summary(experiment: Experiment, run: Run, setup: Setup) -> dict[str, object]:
    """What tables and reports show of a run beside its totals."""
    return {
        "title": run.method.title,
        "method": run.method.name,
        "sparsifier": run.method.sparsifier,
        "settings": repr(setup.method) + (f" {setup.gossip!r}" if setup.gossip != Gossip() else ""),
        "seed": run.seed,
        "nodes": len(setup.parts),
        "rounds": experiment.rounds,
        "peak_rss_bytes": peak_rss_bytes(),
    }


def versions() -> dict[str, str]:
    """What the run was made with."""
    names = ("torch", "numpy", "numba", "cryptography")
    return {
        "python": sys.version.split()[0],
        "machine": machine(),
        "cesar": __version__,
        **{name: importlib.metadata.version(name) for name in names},
    }
