"""The report: experiment directories in, one HTML page out that opens anywhere, without a network.

The frame of the page and what all its plots have in common stand in `cesar.page`, its words in
`templates/experiments.html`, which escapes everything that comes from files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import cesar
from cesar.errors import ConfigError, DataError
from cesar.experiment import run
from cesar.experiment.cells import by_settling_round, comparison, metric_cells, settling_note
from cesar.experiment.config import Experiment
from cesar.experiment.figures import (
    BYTES,
    SECONDS,
    SHADES,
    Axis,
    breakdown,
    cost_axis,
    curves,
    metric_axis,
    settled_words,
    symbol,
    unit_for,
)
from cesar.experiment.results import METRICS, MethodRow, Study, read_study, rows_of, settling
from cesar.page import PALETTE, Figure, graph_figure, stride, write_page


def write_report(directories: Sequence[Path], out: Path) -> Path:
    """Write one self-contained page about all these experiments; where it lies.

    Raises:
        DataError: a directory is no experiment, or nothing in it was tested yet.
    """
    if not directories:
        raise DataError("a report needs at least one experiment directory")
    studies = [read_study(directory) for directory in directories]
    titles = dict.fromkeys(method.title for study in studies for method in study.experiment.method)
    colours = {title: number for number, title in enumerate(titles)}
    path = out / "report.html" if out.is_dir() else out
    return write_page(
        path,
        "experiments.html",
        title=", ".join(_name(study, studies) for study in studies),
        version=cesar.__version__,
        experiments=[_shown(study, _name(study, studies), colours) for study in studies],
        categories=list(SHADES),
    )


def _name(study: Study, studies: list[Study]) -> str:
    """The experiment's name, with its folder where two have the same."""
    name, names = study.experiment.name, [other.experiment.name for other in studies]
    return name if names.count(name) == 1 else f"{name} ({study.folder})"


def _shown(study: Study, name: str, colours: dict[str, int]) -> dict[str, object]:
    """What the template says about one experiment."""
    rows = rows_of(study)
    heads, methods = _summary(study, rows, colours)
    caption = "Values are parameters; all else is overhead."
    sent = Figure(
        title="What a node sends per round",
        caption=caption,
        spec=breakdown(study, colours),
        wide=study.metric == "test_loss",
    )
    return {
        "name": name,
        "about": sentence(study.experiment),
        "heads": heads,
        "methods": methods,
        "nodes_known": any(row.spread is not None for row in rows),
        "comparison": comparison(study, rows),
        "settling": by_settling_round(study),
        "settled": settled_words(study),
        "settling_note": settling_note(study),
        "waiting": [m.title for m in study.experiment.method if m not in study.methods],
        "curves": _curves(study, colours),
        "sent": sent,
        "graph": _topology(study),
        "tables": _toml(study.experiment).rstrip().split("\n\n"),
        "facts": _facts(study),
    }


def _curves(study: Study, colours: dict[str, int]) -> list[Figure]:
    metric, rounds = metric_axis(study.metric), Axis(key="round", name="round")
    sent = cost_axis(study, "bytes", "sent per node", BYTES)
    spent = cost_axis(study, "seconds", "training and protocol", SECONDS)
    better = METRICS[study.metric].capitalize()
    settled = settled_words(study)
    found = [
        Figure(
            title=f"{metric.name} by round",
            caption=f"Test set, mean over nodes. {better} is better; lines that coincide learn equally fast. "
            f"{_legend(study)}{f' {settled[:1].upper()}{settled[1:]}, without training, are grey.' if settled else ''}",
            spec=curves(study, colours, rounds, metric),
            wide=True,
        ),
        Figure(
            title=f"{metric.name} by bytes",
            caption="The further left a line gets there, the less its nodes had to send.",
            spec=curves(study, colours, sent, metric),
        ),
        Figure(
            title=f"{metric.name} by time",
            caption="All nodes on one machine, testing not counted. The further left, the faster.",
            spec=curves(study, colours, spent, metric),
        ),
    ]
    if study.metric != "test_loss":
        caption = "Lower is better. A line that turns upwards overfits or diverges."
        spec = curves(study, colours, rounds, metric_axis("test_loss"))
        found.append(Figure(title="Test loss by round", caption=caption, spec=spec))
    if any(settling(study, method) for method in study.methods):
        spec = curves(study, colours, Axis(key="settle_round", name="settling round"), metric)
        caption = f"Averaging without training, from the end of training (0) on. {settling_note(study)}"
        found.insert(
            1, Figure(title=f"{metric.name} by settling round", caption=caption, spec=spec, wide=True)
        )
    return found


def _legend(study: Study) -> str:
    """What bands and dashed lines are, as far as the runs have them."""
    steps = [step for several in study.runs.values() for one in several for step in one.steps]
    if any(f"{study.metric}_spread" in step for step in steps):
        return "Band: standard deviation between nodes. Dashed: the mean of all models, which no node has."
    return "Band: one standard error over seeds." if len(study.experiment.seeds) > 1 else ""


def _topology(study: Study) -> Figure | str:
    """The graph, or why there is no picture of it."""
    topology, seed = study.experiment.topology, study.experiment.seeds[0]
    try:
        graph = run.graph_of(study.experiment, seed)(0)
    except ConfigError as error:
        return str(error)
    which = f"Round 1 of seed {seed}; drawn anew every round" if topology.dynamic else f"Seed {seed}"
    degrees = sorted({degree for _, degree in graph.degree})
    each = f"{degrees[0]}" if len(degrees) == 1 else f"{degrees[0]} to {degrees[-1]}"
    caption = (
        f"{which}. {len(graph)} nodes, {graph.number_of_edges():,} links, {each} neighbours per node. "
        f"{f'One link in {stride(graph)} is drawn. ' if stride(graph) > 1 else ''}Point at a node to see them."
    )
    spec = graph_figure(graph, topology.kind)
    return Figure(title="Who averages with whom", caption=caption, spec=spec, wide=True)


def sentence(experiment: Experiment) -> str:
    """What is run, in words."""
    topology, training, data = experiment.topology, experiment.training, experiment.data
    graphs = {
        "regular": f"a random {topology.degree}-regular graph",
        "small-world": f"a small world of degree {topology.degree}",
        "file": f"the graph of {topology.path.name if topology.path else 'a file'}",
    }
    spread = {"iid": "spread evenly", "shards": "in label shards", "user": "by user"}
    skew = f"with label skew (Dirichlet, α = {data.dirichlet_alpha:g})"
    settle = f" Then up to {experiment.settle_rounds} settling rounds without training, {100 * experiment.settle_share:g} % shared."
    crashes = f" In each round a node crashes with probability {experiment.faults.crash_rate:g}."
    return (
        f"{topology.nodes} nodes on {graphs.get(topology.kind, f'a {topology.kind} graph')} train {experiment.model.name} "
        f"on {data.dataset}, {spread.get(data.partition, skew)}, for {experiment.rounds} rounds of "
        f"{training.steps_per_round} SGD steps (batch size {training.batch_size}, learning rate "
        f"{training.learning_rate:g}); seeds: {', '.join(map(str, experiment.seeds))}."
        f"{' Sparse D-PSGD shares what CESAR was measured to share.' if experiment.match_share else ''}"
        f"{settle if experiment.settle_rounds else ''}"
        f"{crashes if experiment.faults.crash_rate else ''}"
    )


def _summary(
    study: Study, rows: list[MethodRow], colours: dict[str, int]
) -> tuple[list[str], list[dict[str, object]]]:
    """The heads of the table, and a line for each method."""
    metric_heads, metrics = metric_cells(rows)
    size, unit = unit_for(max(row.bytes for row in rows), BYTES)
    second, clock = unit_for(max(row.seconds_training + row.seconds_protocol for row in rows), SECONDS)
    heads = ["share", *metric_heads, f"sent per node ({unit})", "of full D-PSGD"]
    heads += [f"{what} ({clock})" for what in ("training", "protocol", "testing")]
    lines: list[dict[str, object]] = []
    for row, values in zip(rows, metrics, strict=True):
        cells = [f"{row.shared:.1%}", *values, f"{row.bytes / size:.2f}"]
        cells.append("–" if row.bytes_ratio is None else f"{row.bytes_ratio:.3f}")
        times = (row.seconds_training, row.seconds_protocol, row.seconds_evaluation)
        cells += [f"{seconds / second:.{1 if clock == 's' else 2}f}" for seconds in times]
        number = colours[row.title]
        look = {"colour": number % PALETTE, "symbol": symbol(number)[1]}
        lines.append({"title": row.title, "number": number, **look, "running": _state(row), "cells": cells})
    return heads, lines


def _state(row: MethodRow) -> str:
    """What is to be said about a method that has not ended."""
    if row.seeds_finished == row.seeds_planned:
        return ""
    if row.seeds_finished:
        return f"{row.seeds_finished} of {row.seeds_planned} seeds finished"
    return f"round {row.round_} of {row.rounds}"


def _facts(study: Study) -> dict[str, str]:
    """Everything beside the configuration that is needed to run it again."""
    runs = [(title, one) for title, several in study.runs.items() for one in several]
    names = dict.fromkeys(name for _, one in runs for name in one.versions)
    facts = {
        name: ", ".join(dict.fromkeys(one.versions[name] for _, one in runs if name in one.versions))
        for name in names
    }
    return facts | {title: one.settings for title, one in runs if one.settings}


def _toml(experiment: Experiment) -> str:
    """The experiment as a file that `cesar run` takes."""
    tables = experiment.model_dump(mode="json", exclude_none=True)
    methods = tables.pop("method")
    nested = {key: value for key, value in tables.items() if isinstance(value, dict)}
    parts = [("", {key: value for key, value in tables.items() if key not in nested})]
    parts += [(f"[{key}]\n", table) for key, table in nested.items()]
    parts += [("[[method]]\n", method) for method in methods]
    return "\n".join(
        head + "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in table.items())
        for head, table in parts
    )
