"""Differences between methods, seed by seed.

Runs of the same seed have the same data on each node, the same graph, the same first model and the same samples in every
step. What a seed does to all methods alike falls out of their difference, so its error is that of the differences and not
that of the two means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit  # type: ignore[import-untyped]  # comes with scikit-learn

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The mean of one method's values less another's, over the seeds that both have.

    Attributes:
        error: standard error; None for a single seed.
        margin: half the width of the 95 % interval of Student's t; None for a single seed.
    """

    mean: float
    error: float | None
    margin: float | None
    seeds: int


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> Difference | None:
    """`one` less `other`, both by seed; None if they have no seed in common.

    >>> paired({1: 0.50, 2: 0.54, 3: 0.52}, {1: 0.48, 2: 0.51, 3: 0.51, 4: 0.9}).seeds
    3
    """
    gaps = [one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())]
    if not gaps:
        return None
    error = standard_error_of(gaps)
    margin = None if error is None else error * float(stdtrit(len(gaps) - 1, (1 + CONFIDENCE) / 2))
    return Difference(mean=float(np.mean(gaps)), error=error, margin=margin, seeds=len(gaps))


def standard_error_of(values: Sequence[float]) -> float | None:
    """The standard error of a mean; one value has none."""
    if len(values) < 2:
        return None
    with np.errstate(invalid="ignore"):  # the table says it if a run diverged
        return float(np.std(values, ddof=1) / math.sqrt(len(values)))
