"""A recorded run as something to audit: its graph, settings and selections."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cesar.audit.cells import CellSubject
from cesar.audit.exchange import Exchange, Flags, draw_patterns
from cesar.audit.sources import Found, Question, Selection, Subject
from cesar.base.errors import ConfigError
from cesar.base.seeds import SeedTree
from cesar.base.types import RoundNo
from cesar.graph.cells import CELLS
from cesar.kernels import bits
from cesar.methods.sparsify import Sparsifier
from cesar.sim.secrets import Secrets
from cesar_lab.run import execute, journal, recording
from cesar_lab.run.config import Experiment, MethodTable
from cesar_lab.run.privacy import Budget


def of_run(folder: Path, question: Question, wanted: str | None, round_: int) -> Found:
    """A recorded run: graph and settings as recorded, selections drawn anew from the recorded seed."""
    experiment = execute.read(folder)
    masked = [m for m in experiment.method if m.name != "dpsgd"]
    chosen = [m for m in masked if wanted in (None, m.title, m.folder)]
    if not chosen:
        names = ", ".join(m.title for m in masked)
        raise ConfigError(
            f"{folder} holds no masked method{f' {wanted!r}' if wanted else ''}; it has: {names or 'D-PSGD only, which hides nothing'}"
        )
    section, seed = chosen[0], experiment.seeds[0]
    if round_ >= experiment.rounds:
        raise ConfigError(f"the run has rounds 0 to {experiment.rounds - 1}, not {round_}")
    if section.name == CELLS:
        question.check_cells()
        return _of_cells(experiment, section, seed, folder / section.folder / f"seed-{seed}")
    graph = execute.graph_of(experiment, seed)(round_)
    place = folder / section.folder / f"seed-{seed}"
    size = journal.parameters_of(place)
    method = execute.build_method(experiment, section, seed, size=size).masked
    assert method is not None
    masks = question.requirement(graph, method.for_graph(graph).masks)
    flags, notes = _selected(place, method.sparsifier, len(graph), seed, round_, size, question.patterns)
    if experiment.faults.crash_rate:
        notes.append("The run had crashes; the audit takes the round as if nobody had crashed.")
    subject = Subject(
        graph=graph,
        source=f"{experiment.name}, {section.title}, seed {seed}, round {round_}",
        sparsifier=section.sparsifier or Selection.FULL.value,
        alpha=method.sparsifier.alpha,
        seed=seed,
        notes=tuple(notes),
    )
    return subject, Exchange.complete(graph, flags, masks)


def _of_cells(experiment: Experiment, section: MethodTable, seed: int, place: Path) -> CellSubject:
    """The cells of a run, divided as the simulator divides them, and with noise what it spends on a sample."""
    budget = Budget.read(place)
    return CellSubject(
        plan=section.cells().plan(experiment.topology.nodes, seed=seed),
        source=f"{experiment.name}, {section.title}, seed {seed}",
        sparsifier=section.sparsifier or Selection.FULL.value,
        share=section.share or 1.0,
        notes=tuple(budget.lines(experiment.rounds)) if budget is not None else (),
    )


def _selected(
    place: Path, sparsifier: Sparsifier, nodes: int, seed: int, round_: int, size: int, patterns: int
) -> tuple[Flags, list[str]]:
    """What the nodes of a run selected, at up to `patterns` positions: as recorded, else drawn again."""
    looked_at = np.sort(SeedTree(seed).generator("audit", "positions").permutation(size)[:patterns])
    part = f"{len(looked_at):,} of {size:,} positions, drawn at random."
    if (kept := recording.path_of(place, round_ + 1)).exists():
        return recording.read(place, round_ + 1).selected[:, looked_at], [
            f"Selections as in {kept.name}. {part}"
        ]
    if sparsifier.alpha == 1.0:
        return np.ones((nodes, 1), dtype=bool), []
    sets = Secrets(seed).selections(sparsifier, RoundNo(round_), nodes, size)
    if sets is None:
        note = (
            "TopK selections follow from training and were not recorded ([recording] every = N keeps them): "
            "independent ones with the same α stand in for them."
        )
        return draw_patterns(nodes, patterns, sparsifier.alpha, seed), [note]
    flags = np.stack([bits.to_bools(chosen.words, size)[looked_at] for chosen in sets])
    return flags, [
        f"Selections were not recorded; they were drawn again from the recorded seed, by the same code. {part}"
    ]
