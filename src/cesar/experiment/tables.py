"""Results as Markdown, for documents that are written by a command and never by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from cesar.experiment import run
from cesar.experiment.results import MethodRow, summarise


def write_tables(directories: Sequence[Path], out: Path) -> Path:
    """One section per experiment: what was run, on what, and what came of it."""
    lines = ["# Benchmarks", "", "Written by `cesar report … --markdown`; every figure was measured.", ""]
    for directory in directories:
        lines += _section(directory)
    out.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    return out


def _section(directory: Path) -> Iterator[str]:
    experiment, rows = run.read(directory), summarise(directory)
    topology, training, data = experiment.topology, experiment.training, experiment.data
    yield f"## {experiment.name}"
    yield ""
    yield (
        f"{data.dataset} ({data.partition}), {experiment.model.name}, {topology.nodes} nodes, {topology.kind} graph "
        f"of degree {topology.degree}, {experiment.rounds} rounds of {training.steps_per_round} steps, batch "
        f"{training.batch_size}, learning rate {training.learning_rate:g}, seeds "
        f"{', '.join(map(str, experiment.seeds))}."
    )
    yield ""
    yield f"| method | shared | {rows[0].metric} | ± | MB per node | training s | protocol s | testing s | all s |"
    yield "|---|---|---|---|---|---|---|---|---|"
    yield from map(_line, rows)
    yield ""
    yield f"Made with {_versions(directory)}."
    yield ""


def _line(row: MethodRow) -> str:
    parts = (row.seconds_training, row.seconds_protocol, row.seconds_evaluation)
    error = "–" if row.error is None else f"{row.error:.4f}"
    seconds = " | ".join(f"{part:.1f}" for part in (*parts, sum(parts)))
    return (
        f"| {row.title} | {row.shared:.4f} | {row.value:.4f} | {error} | {row.bytes / 1e6:.2f} | {seconds} |"
    )


def _versions(directory: Path) -> str:
    path = next(iter(sorted(directory.glob("*/seed-*/versions.json"))))
    found: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return ", ".join(f"{name} {version}" for name, version in found.items())
