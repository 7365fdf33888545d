"""Methods set against one another, for the claims."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cesar.experiment.results import MethodRow

Rows = dict[str, dict[str, "MethodRow"]]
"""Part → title of the method → its line."""


def gap(one: MethodRow, other: MethodRow) -> tuple[float, float]:
    """The mean difference over the seeds that both have, and its standard error (NaN for one seed)."""
    from cesar.experiment.paired import paired  # noqa: PLC0415  (the command line starts without scipy)

    found = paired(one.by_seed, other.by_seed)
    if found is None:
        return math.nan, math.nan
    return found.mean, math.nan if found.error is None else found.error


def points(difference: float, error: float) -> str:
    """A difference of accuracies in points."""
    return f"{100 * difference:+.2f}" + ("" if math.isnan(error) else f" ± {100 * error:.2f}")


def against(rows: Rows, base: str) -> str:
    """By how much the others are better than `base`, part by part; nothing if there are none."""
    texts = []
    for part, line in rows.items():
        if base not in line:
            continue
        axis = "points of accuracy" if line[base].higher_is_better else "% lower RMSE"
        listed = ", ".join(
            f"{title.removeprefix('CESAR, ')} {_better(row, line[base]):+.2f}"
            for title, row in line.items()
            if title != base
        )
        if listed:
            texts.append(f"{part} ({axis}): {listed}")
    return "; ".join(texts)


def _better(row: MethodRow, other: MethodRow) -> float:
    """By how much a row is better than another, in percent of the metric for errors and points for accuracies."""
    difference, _ = gap(row, other)
    return 100 * difference if row.higher_is_better else -100 * difference / other.value
