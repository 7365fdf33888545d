"""What the page and the Markdown tables have in common: the cells of their tables, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cesar.experiment.figures import BYTES, Axis, difference, metric_axis, shown, unit_for
from cesar.experiment.paired import paired
from cesar.experiment.results import MethodRow, Study, last, mean, mean_if_known, reference, settling
from cesar.settings import MethodSection

NONE = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """A table: the first cell of a row is the method's title."""

    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def metric_cells(rows: list[MethodRow]) -> tuple[list[str], list[list[str]]]:
    """Heads, and for each method: nodes, spread, mean of all models, before settling; what no run knows has no column."""
    metric = metric_axis(rows[0].metric)
    unit = f" ({metric.unit})" if metric.unit else ""
    columns = {
        metric.title: [shown(row.value, row.error, metric) for row in rows],
        f"spread between nodes{unit}": [_known(row.spread, metric) for row in rows],
        f"mean of all models{unit}": [_known(row.mean_model, metric) for row in rows],
        f"before settling{unit}": [_known(row.before_settling, metric) for row in rows],
    }
    kept = {head: cells for head, cells in columns.items() if set(cells) != {NONE}}
    return list(kept), [list(cells) for cells in zip(*kept.values(), strict=True)]


def _known(value: float | None, axis: Axis) -> str:
    return NONE if value is None else shown(value, None, axis)


def comparison(study: Study, rows: list[MethodRow]) -> Cells:
    """Each method against its reference, by paired differences over the seeds that both have."""
    metric, lines = metric_axis(study.metric), []
    unit = "points" if metric.unit == "%" else metric.name
    for method, row in zip(study.methods, rows, strict=True):
        other = _reference_row(study, method, row, rows)
        found = None if other is None else paired(row.by_seed, other.by_seed)
        if other is None or found is None:
            continue
        common = paired(row.mean_model_by_seed, other.mean_model_by_seed)
        lines.append(
            (
                row.title,
                other.title,
                *difference(found, metric),
                *((NONE, NONE) if common is None else difference(common, metric)),
                f"{found.seeds}",
                f"{_seconds(row) / _seconds(other):.3f}",
            )
        )
    heads = ("method", "against", f"nodes ({unit})", "95 %", f"mean of all models ({unit})", "95 %")
    return Cells(heads=(*heads, "seeds", "ratio of time"), rows=lines)


def _reference_row(
    study: Study, method: MethodSection, row: MethodRow, rows: list[MethodRow]
) -> MethodRow | None:
    """The row of its reference, if that has come as far."""
    other = reference(study, method)
    found = next((one for one in rows if other is not None and one.title == other.title), None)
    return found if found is not None and found.round_ == row.round_ else None


def _seconds(row: MethodRow) -> float:
    return row.seconds_training + row.seconds_protocol


def by_settling_round(study: Study) -> Cells:
    """How nodes come together when training is over: round 0 is the end of training."""
    metric, sent = metric_axis(study.metric), [mean(last(study, m), "settle_bytes") for m in study.methods]
    size, unit = unit_for(max(sent), BYTES)
    lines = [
        (
            method.title,
            f"{steps[0]['settle_round']:.0f}",
            shown(mean(steps, metric.key), None, metric),
            _known(mean_if_known(steps, f"{metric.key}_spread"), metric),
            _known(mean_if_known(steps, f"mean_model_{metric.key}"), metric),
            _small(mean_if_known(steps, "distance")),
            f"{mean(steps, 'settle_bytes') / size:.2f}",
        )
        for method in study.methods
        for steps in settling(study, method)
    ]
    heads = ("method", "settling round", f"nodes: {metric.title}", "spread", "mean of all models", "distance")
    return Cells(heads=(*heads, f"sent per node ({unit})"), rows=lines)


def _small(value: float | None) -> str:
    return NONE if value is None else f"{value:.2e}"


def settling_note(study: Study) -> str:
    """On which images tests were made, where that differs between the rows of a table."""
    section = study.experiment.evaluation
    if not section.all_at_end or section.test_samples is None:
        return ""
    return (
        f"Tests after the last round of training and of settling are on the whole test set, those between on its first "
        f"{section.test_samples:,} samples."
    )
