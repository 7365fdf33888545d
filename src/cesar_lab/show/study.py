"""What an experiment has to show: its tables, its charts, and the sentences beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from cesar.page import Figure, graph_figure, stride
from cesar.protocol.wire import CATEGORIES
from cesar_lab.run import execute as run
from cesar_lab.run.config import Experiment, MethodTable
from cesar_lab.show.chart import Axis, Chart, Series
from cesar_lab.show.paired import paired
from cesar_lab.show.quantity import BYTES, SECONDS, Quantity, three_digits
from cesar_lab.show.results import (
    METRICS,
    MethodRow,
    Step,
    Study,
    judged,
    last,
    mean,
    mean_if_known,
    reference,
    settling,
    standard_error,
)
from cesar_lab.show.table import NONE, Table

ROUND = Quantity(key="round", name="round")
SETTLE_ROUND = Quantity(key="settle_round", name="settling round")
PARTS = ("values", "coordination", "metadata", "control")
"""Of a bar, from left to right."""
assert set(PARTS) == set(CATEGORIES)

# ── tables ──────────────────────────────────────────────────────────────────────────────────────────────


def summary(rows: Sequence[MethodRow]) -> Table:
    """A line for each method: what it reached, and what it cost."""
    metric = Quantity.metric(rows[0].metric)
    sent = Quantity.cost("bytes", "sent per node", max(row.bytes for row in rows))
    clock = Quantity.cost("", "", max(row.seconds_training + row.seconds_protocol for row in rows), SECONDS)
    clock = replace(clock, digits=1 if clock.unit == "s" else 2)

    def column(quantity: Quantity, values: Iterator[float | None]) -> list[str]:
        return [quantity.text(value) for value in values]

    unit = metric.unit
    return Table.of(
        {
            ("method", ""): [row.title for row in rows],
            ("shared", ""): [f"{row.shared:.1%}" for row in rows],
            metric.head: [metric.text(row.value, row.error) for row in rows],
            ("spread between nodes", unit): column(metric, (row.spread for row in rows)),
            ("mean of all models", unit): column(metric, (row.mean_model for row in rows)),
            ("before settling", unit): column(metric, (row.before_settling for row in rows)),
            sent.head: column(sent, (row.bytes for row in rows)),
            ("of full D-PSGD", ""): [
                NONE if row.bytes_ratio is None else f"{row.bytes_ratio:.3f}" for row in rows
            ],
            ("training", clock.unit): column(clock, (row.seconds_training for row in rows)),
            ("protocol", clock.unit): column(clock, (row.seconds_protocol for row in rows)),
            ("testing", clock.unit): column(clock, (row.seconds_evaluation for row in rows)),
        },
        caption="Means over nodes and seeds, ± standard error over seeds. Shared: of the parameters, in all rounds. Spread: "
        "standard deviation between nodes. Mean of all models: what nodes would have if they agreed; only a simulator knows it.",
    )


def comparison(study: Study, rows: Sequence[MethodRow]) -> Table:
    """Each method against its reference, by paired differences over the seeds that both have."""
    metric, lines = Quantity.metric(study.metric), []
    unit = "points" if metric.unit == "%" else metric.name
    by_title = {row.title: row for row in rows}
    for method, row in zip(study.methods, rows, strict=True):
        plain = reference(study, method)
        other = None if plain is None else by_title[plain.title]
        if other is None or other.round_ != row.round_:  # one of them has not come as far
            continue
        found = paired(row.by_seed, other.by_seed)
        if found is None:
            continue
        common = paired(row.mean_model_by_seed, other.mean_model_by_seed)
        cells = (*metric.difference(found), *metric.difference(common), f"{found.seeds}")
        lines.append((row.title, other.title, *cells, f"{_seconds(row) / _seconds(other):.3f}"))
    return Table(
        heads=("method", "against", "nodes", "95 %", "mean of all models", "95 %", "seeds", "ratio of time"),
        units=("", "", unit, "", unit, "", "", ""),
        rows=tuple(lines),
        title="Differences, seed by seed",
        caption="Against D-PSGD with the same sparsifier and share, or else against full sharing: mean of the paired differences "
        "over seeds ± its standard error, and its 95 % interval (Student's t). An interval that holds 0 decides nothing. Time is "
        "of training and protocol.",
        names=2,
    )


def _seconds(row: MethodRow) -> float:
    return row.seconds_training + row.seconds_protocol


def by_settling_round(study: Study) -> Table:
    """How nodes come together when training is over; without rows where no settling rounds were run."""
    metric = Quantity.metric(study.metric)
    sent = Quantity.cost(
        "settle_bytes", "sent per node", max(mean(last(study, m), "settle_bytes") for m in study.methods)
    )
    lines = []
    for method in study.methods:
        for steps in settling(study, method):
            distance = mean_if_known(steps, "distance")
            lines.append(
                (
                    method.title,
                    f"{steps[0]['settle_round']:.0f}",
                    metric.text(mean(steps, metric.key)),
                    metric.text(mean_if_known(steps, f"{metric.key}_spread")),
                    metric.text(mean_if_known(steps, f"mean_model_{metric.key}")),
                    NONE if distance is None else f"{distance:.2e}",
                    sent.text(mean(steps, sent.key)),
                )
            )
    heads = ("method", "settling round", f"nodes: {metric.name}", "spread", "mean of all models", "distance")
    return Table(
        heads=(*heads, sent.name),
        units=("", "", metric.unit, "", "", "", sent.unit),
        rows=tuple(lines),
        title="By settling round",
        caption=f"Round 0 is the end of training. In all: {settled_words(study)}. Distance: between models and their mean, root "
        f"mean square. {_whole_tests(study)}".strip(),
        names=2,
    )


# ── charts ──────────────────────────────────────────────────────────────────────────────────────────────


def charts(study: Study, colours: Mapping[str, int]) -> list[Chart]:
    """All of a report's page: the metric over rounds, settling rounds, bytes and time, the loss, and what is sent."""
    metric = Quantity.metric(study.metric)
    ends = {method.title: last(study, method) for method in study.methods}

    def cost(key: str, name: str, units: tuple[tuple[float, str], ...]) -> Quantity:
        return Quantity.cost(key, name, max(mean(steps, key) for steps in ends.values()), units)

    settled = settled_words(study)
    grey = f" {settled[:1].upper()}{settled[1:]}, without training, are grey." if settled else ""
    found = [
        _curves(
            study,
            colours,
            ROUND,
            metric,
            f"Test set, mean over nodes. {METRICS[study.metric].capitalize()} is better; lines that coincide learn "
            f"equally fast. {_bands(study)}{grey}",
        )
    ]
    if settled:
        about = f"Averaging without training, from the end of training (0) on. {_whole_tests(study)}"
        found.append(_curves(study, colours, SETTLE_ROUND, metric, about))
    sent, spent = (
        cost("bytes", "sent per node", BYTES),
        cost("seconds", "training and protocol", SECONDS),
    )
    further = "The further left a line gets there, the less its nodes had to send."
    found.append(_curves(study, colours, sent, metric, further, "bytes"))
    faster = "All nodes on one machine, testing not counted. The further left, the faster."
    found.append(_curves(study, colours, spent, metric, faster, "time"))
    if study.metric != "test_loss":
        turns = "Lower is better. A line that turns upwards overfits or diverges."
        loss = _curves(study, colours, ROUND, Quantity.metric("test_loss"), turns)
        found.append(replace(loss, wide=False))
    if all("epsilon" in row for steps in ends.values() for row in steps):
        about = "ε of a sample against k owners, by the accountant: the lower, the less can be told of it."
        spent_on = _curves(study, colours, ROUND, Quantity(key="epsilon", name="epsilon"), about)
        found.append(replace(spent_on, wide=False))
    return [*found, _breakdown(study, colours)]


def _curves(
    study: Study, colours: Mapping[str, int], x: Quantity, y: Quantity, caption: str, by: str = ""
) -> Chart:
    """Means over nodes and seeds with a band for the spread between nodes; thin, the mean of all models."""
    series = []
    for method in study.methods:
        groups = settling(study, method) if x is SETTLE_ROUND else judged(study, method)
        if not groups:
            continue
        after = "" if x in (ROUND, SETTLE_ROUND) else f" after {{:.4g}} {x.unit}, round {{:.0f}}"
        nodes = _line(groups, x, y)
        hover = [
            f"{y.text(mean(group, y.key), standard_error(group, y.key))} {y.unit}".rstrip()
            + after.format(across, group[0]["round"])
            for group, across in zip(groups, nodes.x, strict=True)
        ]
        colour = colours[method.title]
        if all(mean_if_known(group, f"mean_model_{y.key}") is not None for group in groups):
            common = _line(groups, x, replace(y, key=f"mean_model_{y.key}"))
            name = f"{method.title}, mean of all models"
            series.append(replace(common, name=name, look="thin", error=(), colour=colour))
        series.append(replace(nodes, name=method.title, hover=hover, colour=colour))
    ends = [mean(last(study, method), "round") for method in study.methods if settling(study, method)]
    shaded = (study.experiment.rounds, max(ends), settled_words(study)) if ends and x is ROUND else None
    return Chart(
        title=f"{y.name} by {by or x.name}",
        caption=caption,
        x=Axis(name=x.name, unit=x.unit, whole=x in (ROUND, SETTLE_ROUND), zero=True),
        y=y.axis(),
        series=tuple(series),
        shaded=shaded,
        legend=False,
        wide=x in (ROUND, SETTLE_ROUND),
    )


def _line(groups: Sequence[list[Step]], x: Quantity, y: Quantity) -> Series:
    """The means, with the spread between nodes; runs of older versions lack it, and have the error over seeds."""

    def half(group: list[Step]) -> float:
        spread = mean_if_known(group, f"{y.key}_spread")
        found = standard_error(group, y.key) if spread is None else spread
        return float("nan") if found is None else found / y.size

    return Series(
        name="",
        x=[mean(group, x.key) / x.size for group in groups],
        y=[mean(group, y.key) / y.size for group in groups],
        error=[half(group) for group in groups],
    )


def _bands(study: Study) -> str:
    """What bands and thin lines are, as far as the runs have them."""
    steps = [step for several in study.runs.values() for one in several for step in one.steps]
    if any(f"{study.metric}_spread" in step for step in steps):
        return "Band: standard deviation between nodes. Dashed: the mean of all models, which no node has."
    return "Band: one standard error over seeds." if len(study.experiment.seeds) > 1 else ""


def _breakdown(study: Study, colours: Mapping[str, int]) -> Chart:
    """Bytes per node and round, a bar per method in its colour and a texture per category."""
    ends = {method.title: last(study, method) for method in study.methods}
    largest = max(mean(steps, "bytes_per_round") for steps in ends.values())
    sent = Quantity.cost("bytes_per_round", "per node and round", largest)
    series = [
        Series(
            name=category,
            x=[title],
            y=[mean(steps, f"{category}_per_round") / sent.size],
            hover=[f"{mean(steps, f'{category}_per_round'):,.0f} B"],
            look="bar",
            colour=colours[title],
            texture=texture,
        )
        for title, steps in ends.items()
        for texture, category in enumerate(PARTS)
    ]
    return Chart(
        title="What a node sends per round",
        caption="Values are parameters; all else is overhead.",
        x=Axis(),
        y=sent.axis(),
        series=tuple(series),
        legend=False,
        wide=study.metric == "test_loss",
    )


def progress(study: Study, x: Quantity, *, title: str, until: int | None = None, log: bool = False) -> Chart:
    """For documents: means over nodes and seeds, with the standard error over seeds as a band.

    `until` leaves out what came after that round. Where neighbours see models, lines are broken.
    """
    metric = Quantity.metric(study.metric)
    planned = [method.title for method in study.experiment.method]
    series = []
    for method in study.methods:
        groups = [g for g in judged(study, method) if until is None or g[0]["round"] <= until]
        error = [(standard_error(group, metric.key) or 0.0) / metric.size for group in groups]
        colour = planned.index(method.title)  # the same in pictures side by side
        line = replace(_line(groups, x, metric), name=method.title, error=error, colour=colour)
        series.append(replace(line, open=shows_models(method)))
    return Chart(title=title, x=x.axis(log=log), y=metric.axis(), series=tuple(series))


def shows_models(method: MethodTable) -> bool:
    """Whether neighbours see a node's parameters."""
    return method.name == "dpsgd"


def graph(study: Study) -> Figure:
    """Who averages with whom.

    Raises:
        ConfigError: the graph cannot be drawn again.
    """
    topology, seed = study.experiment.topology, study.experiment.seeds[0]
    found = run.graph_of(study.experiment, seed)(0)
    which = f"Round 1 of seed {seed}; drawn anew every round" if topology.dynamic else f"Seed {seed}"
    degrees = sorted({degree for _, degree in found.degree})
    each = f"{degrees[0]}" if len(degrees) == 1 else f"{degrees[0]} to {degrees[-1]}"
    caption = (
        f"{which}. {len(found)} nodes, {found.number_of_edges():,} links, {each} neighbours per node. "
        f"{f'One link in {stride(found)} is drawn. ' if stride(found) > 1 else ''}Point at a node to see them."
    )
    spec = graph_figure(found, topology.kind)
    return Figure(title="Who averages with whom", caption=caption, spec=spec, wide=True)


# ── sentences ───────────────────────────────────────────────────────────────────────────────────────────


def sentence(experiment: Experiment) -> str:
    """What is run, in words."""
    topology, training, data = experiment.topology, experiment.training, experiment.data
    graphs = {
        "regular": f"a random {topology.degree}-regular graph",
        "small-world": f"a small world of degree {topology.degree}",
        "file": f"the graph of {topology.path.name if topology.path else 'a file'}",
    }
    spread = {
        "iid": "spread evenly",
        "shards": "in label shards",
        "kshard": "in random slices of the sorted labels",
        "user": "by user",
    }
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


def settled_words(study: Study) -> str:
    """How many settling rounds there were, and what a node sent in them; nothing if there were none."""
    ends = [last(study, method) for method in study.methods if settling(study, method)]
    if not ends:
        return ""
    counts = [step["settle_round"] for steps in ends for step in steps]
    amounts = [mean(steps, "settle_bytes") for steps in ends]
    sent = Quantity.cost("settle_bytes", "", max(amounts))
    rounds = _span(f"{count:.0f}" for count in (min(counts), max(counts)))
    amount = _span(three_digits(amount / sent.size) for amount in (min(amounts), max(amounts)))
    return f"{rounds} settling round{'' if rounds == '1' else 's'}, {amount} {sent.unit} per node"


def _span(ends: Iterator[str]) -> str:
    return " to ".join(dict.fromkeys(ends))


def _whole_tests(study: Study) -> str:
    """On which images tests were made, where that differs between the rows of a table."""
    section = study.experiment.evaluation
    if not section.all_at_end or section.test_samples is None:
        return ""
    return (
        f"Tests after the last round of training and of settling are on the whole test set, those between on its first "
        f"{section.test_samples:,} samples."
    )


def unfinished(study: Study, rows: Sequence[MethodRow]) -> Iterator[str]:
    """What is still missing, method by method."""
    waiting = [m.title for m in study.experiment.method if m not in study.methods]
    if waiting:
        yield f"Not tested yet: {', '.join(waiting)}."
    for row in rows:
        if row.seeds_finished < row.seeds_planned:
            yield (
                f"Not complete: {row.title}, {row.seeds_finished} of {row.seeds_planned} seeds, "
                f"{row.round_} of {row.rounds} rounds."
            )


def circumstances(study: Study) -> Iterator[str]:
    """Machine, versions and memory, as the runs noted them."""
    runs = [one for method in study.methods for one in study.runs[method.title] if one.steps]
    notes = set()
    for one in runs:
        versions = [f"{name} {version}" for name, version in one.versions.items() if name != "machine"]
        notes.add(", ".join([one.versions.get("machine", "an unknown machine"), *versions]))
    yield f"Made on {'; and on '.join(sorted(notes))}."
    peaks = [one.peak_rss_bytes for one in runs if one.peak_rss_bytes is not None]
    if peaks:
        yield f"Peak memory of the process that ran it: {max(peaks) / 1e9:.2f} GB."
