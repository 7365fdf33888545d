"""The report: experiment directories in, one HTML page out that opens anywhere, without a network.

The frame of the page and what all its plots have in common stand in `cesar.page`. Everything that comes from
files is escaped.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path

import cesar
from cesar.errors import ConfigError, DataError
from cesar.experiment import run
from cesar.experiment.config import Experiment
from cesar.experiment.figures import (
    BYTES,
    PALETTE,
    SECONDS,
    SHADES,
    Axis,
    breakdown,
    cost_axis,
    curves,
    metric_axis,
    shown,
    symbol,
    unit_for,
)
from cesar.experiment.results import METRICS, MethodRow, Study, read_study, rows_of
from cesar.page import figure, graph_figure, stride, whole_page
from cesar.settings import MethodSection


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
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_page(studies, colours), encoding="utf-8")
    return path


def _page(studies: list[Study], colours: dict[str, int]) -> str:
    names = [_name(study, studies) for study in studies]
    several = len(studies) > 1
    links = "".join(f'<a href="#e{i}">{name}</a>' for i, name in enumerate(names))
    head = f"<h1>{len(names)} experiments</h1><nav>{links}</nav>" if several else f"<h1>{names[0]}</h1>"
    sections = (
        f'<section id="e{i}">{f"<h2>{name}</h2>" if several else ""}{_section(study, colours)}</section>'
        for i, (name, study) in enumerate(zip(names, studies, strict=True))
    )
    return whole_page(", ".join(names), f"{head}{''.join(sections)}", cesar.__version__)


def _name(study: Study, studies: list[Study]) -> str:
    """The experiment's name, with its folder where two have the same."""
    name, names = study.experiment.name, [other.experiment.name for other in studies]
    return html.escape(name if names.count(name) == 1 else f"{name} ({study.folder})")


def _section(study: Study, colours: dict[str, int]) -> str:
    metric, rounds = metric_axis(study.metric), Axis(key="round", name="round")
    sent = cost_axis(study, "bytes", "sent per node", BYTES)
    spent = cost_axis(study, "seconds", "training and protocol", SECONDS)
    loss = study.metric == "test_loss"
    better = METRICS[study.metric].capitalize()
    figures = [
        figure(
            f"{metric.name} by round",
            f"Test set, mean over nodes. {better} is better; lines that coincide learn equally fast."
            + (" Band: one standard error over seeds." if len(study.experiment.seeds) > 1 else ""),
            curves(study, colours, rounds, metric),
            wide=True,
        ),
        figure(
            f"{metric.name} by bytes",
            "The further left a line gets there, the less its nodes had to send.",
            curves(study, colours, sent, metric),
        ),
        figure(
            f"{metric.name} by time",
            "All nodes on one machine, testing not counted. The further left, the faster.",
            curves(study, colours, spent, metric),
        ),
        "" if loss else _loss_figure(study, colours, rounds),
        figure(
            "What a node sends per round",
            f"Values are parameters; all else is overhead.{_categories()}",
            breakdown(study, colours),
            wide=loss,
        ),
        _topology(study),
    ]
    return (
        f"<p>{html.escape(sentence(study.experiment))}</p>{_summary(study, colours)}"
        f"{_key(study, colours)}<div class=figures>{''.join(figures)}</div>{_details(study)}"
    )


def _loss_figure(study: Study, colours: dict[str, int], rounds: Axis) -> str:
    caption = "Lower is better. A line that turns upwards overfits or diverges."
    return figure("Test loss by round", caption, curves(study, colours, rounds, metric_axis("test_loss")))


def _topology(study: Study) -> str:
    topology, seed = study.experiment.topology, study.experiment.seeds[0]
    try:
        graph = run.graph_of(study.experiment, seed)(0)
    except ConfigError as error:
        return f"<figure class=wide><h3>Who averages with whom</h3><p>No picture: {html.escape(str(error))}</p></figure>"
    which = f"Round 1 of seed {seed}; drawn anew every round" if topology.dynamic else f"Seed {seed}"
    degrees = sorted({degree for _, degree in graph.degree})
    each = f"{degrees[0]}" if len(degrees) == 1 else f"{degrees[0]} to {degrees[-1]}"
    caption = (
        f"{which}. {len(graph)} nodes, {graph.number_of_edges():,} links, {each} neighbours per node. "
        f"{f'One link in {stride(graph)} is drawn. ' if stride(graph) > 1 else ''}Point at a node to see them."
    )
    return figure("Who averages with whom", caption, graph_figure(graph, topology.kind), wide=True)


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
    crashes = f" In each round a node crashes with probability {experiment.faults.crash_rate:g}."
    return (
        f"{topology.nodes} nodes on {graphs.get(topology.kind, f'a {topology.kind} graph')} train {experiment.model.name} "
        f"on {data.dataset}, {spread.get(data.partition, skew)}, for {experiment.rounds} rounds of "
        f"{training.steps_per_round} SGD steps (batch size {training.batch_size}, learning rate "
        f"{training.learning_rate:g}); seeds: {', '.join(map(str, experiment.seeds))}."
        f"{' Sparse D-PSGD shares what CESAR was measured to share.' if experiment.match_share else ''}"
        f"{crashes if experiment.faults.crash_rate else ''}"
    )


def _summary(study: Study, colours: dict[str, int]) -> str:
    rows, metric = rows_of(study), metric_axis(study.metric)
    size, unit = unit_for(max(row.bytes for row in rows), BYTES)
    second, clock = unit_for(max(row.seconds_training + row.seconds_protocol for row in rows), SECONDS)
    heads = "".join(
        f"<th>{head}" for head in ("share", metric.title, f"sent per node ({unit})", "of full D-PSGD")
    )
    body = ""
    for method, row in zip(study.methods, rows, strict=True):
        cells = [f"{row.shared:.1%}", shown(row.value, row.error, metric), f"{row.bytes / size:.2f}"]
        cells.append("–" if row.bytes_ratio is None else f"{row.bytes_ratio:.3f}")
        times = (row.seconds_training, row.seconds_protocol, row.seconds_evaluation)
        cells += [f"{seconds / second:.{1 if clock == 's' else 2}f}" for seconds in times]
        body += f"<tr><th>{_swatch(method, colours[row.title])}{html.escape(row.title)}{_state(row)}"
        body += "".join(f"<td>{cell}" for cell in cells)
    waiting = [m.title for m in study.experiment.method if m not in study.methods]
    note = f"<p class=note>Not tested yet: {html.escape(', '.join(waiting))}.</p>" if waiting else ""
    return (
        f"<div class=scroll><table><thead><tr><th>method{heads}<th>training ({clock})<th>protocol ({clock})"
        f"<th>testing ({clock})<tbody>{body}</table></div>"
        "<p class=note>Means over nodes and seeds, ± standard error over seeds where there are several. Share: "
        f"fraction of the parameters that was sent, as measured. 1 kB is 1000 bytes.</p>{note}"
    )


def _state(row: MethodRow) -> str:
    """What is to be said about a method that has not ended."""
    if row.seeds_finished == row.seeds_planned:
        return ""
    seeds = f"{row.seeds_finished} of {row.seeds_planned} seeds finished"
    return f"<small>running: {seeds if row.seeds_finished else f'round {row.round_} of {row.rounds}'}</small>"


def _swatch(method: MethodSection, colour: int) -> str:
    return f'<i class="swatch {method.name}" style="color:var(--c{colour % PALETTE})">{symbol(colour)[1]}</i>'


def _categories() -> str:
    names = "".join(f'<span class="cat {name}"><i></i>{name}</span>' for name in SHADES)
    return f"<span class=cats>{names}</span>"


def _key(study: Study, colours: dict[str, int]) -> str:
    """One legend for all plots of an experiment; a click hides a method everywhere."""
    buttons = (
        f'<button type=button aria-pressed=true data-method="{colours[method.title]}">'
        f"{_swatch(method, colours[method.title])}{html.escape(method.title)}</button>"
        for method in study.methods
    )
    return f"<div class=key>{''.join(buttons)}<small>click to hide</small></div>"


def _details(study: Study) -> str:
    """Everything that is needed to run it again."""
    runs = [(title, one) for title, several in study.runs.items() for one in several]
    names = dict.fromkeys(name for _, one in runs for name in one.versions)
    facts = {
        name: ", ".join(dict.fromkeys(one.versions[name] for _, one in runs if name in one.versions))
        for name in names
    }
    facts |= {title: one.settings for title, one in runs if one.settings}
    tables = _toml(study.experiment).rstrip().split("\n\n")
    config = "".join(f"<span>{html.escape(table)}\n\n</span>" for table in tables)
    lines = "".join(f"<dt>{html.escape(k)}<dd>{html.escape(v)}" for k, v in facts.items())
    return (
        "<details><summary>Configuration and versions</summary><p>The experiment file with all defaults:</p>"
        f"<pre>{config}</pre><dl>{lines}</dl></details>"
    )


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
