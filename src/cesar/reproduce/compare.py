"""Methods set against one another, for the claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from cesar.reproduce.reproduction import Verdict

if TYPE_CHECKING:
    from cesar.experiment.paired import Difference
    from cesar.experiment.results import MethodRow

Rows = dict[str, dict[str, "MethodRow"]]
"""Part → title of the method → its line."""
Compared = Sequence[tuple[str, str, str]]
"""Methods, one and the one that it is set against, and what to call that."""
LIMIT = 0.01
"""Accuracies that differ by less, 95 % interval included, are called equal: a point, twice what the paper calls equal."""


def gap(one: MethodRow, other: MethodRow, *, trained: bool = False) -> Difference | None:
    """`one` less `other` over the seeds that both have; with `trained` at the end of training, before settling."""
    from cesar.experiment.paired import paired  # noqa: PLC0415  (the command line starts without scipy)

    if trained:
        return paired(one.trained_by_seed, other.trained_by_seed)
    return paired(one.by_seed, other.by_seed)


def gaps(rows: Rows, compared: Compared, *, trained: bool = True) -> dict[str, Difference | None]:
    """Part and words → the nodes' paired differences, at the end of training or else after settling."""
    return {words: gap(one, other, trained=trained) for words, one, other in _both_run(rows, compared)}


def sent_of(rows: Rows, compared: Compared) -> list[float]:
    """What one sent, in percent of the other's bytes."""
    return [100 * one.bytes / other.bytes for _, one, other in _both_run(rows, compared)]


def _both_run(rows: Rows, compared: Compared) -> Iterator[tuple[str, MethodRow, MethodRow]]:
    for part, line in rows.items():
        for one, other, words in compared:
            if one in line and other in line:
                yield f"{part}, {words}", line[one], line[other]


def listed(found: Mapping[str, Difference | None]) -> str:
    """Differences one after the other, in points."""
    return "; ".join(f"{words} {points(difference)}" for words, difference in found.items())


def points(found: Difference | None, size: float = 100.0) -> str:
    """A difference of accuracies in points, or of something else times `size`, with its 95 % interval."""
    if found is None:
        return "no seed in common"
    if found.margin is None:
        return f"{signed(size * found.mean)} (one seed)"
    low, high = sorted(size * (found.mean + side * found.margin) for side in (-1, 1))
    return f"{signed(size * found.mean)} ({signed(low)} to {signed(high)})"


def signed(value: float) -> str:
    """A difference as people write it."""
    return f"{value:+.2f}".replace("-", "−")


def equal(found: Sequence[Difference | None]) -> Verdict:
    """Whether all differences lie within the limit, interval included."""
    return _judge(found, both=True)


def no_worse(found: Sequence[Difference | None]) -> Verdict:
    """Whether none lies below the limit, interval included."""
    return _judge(found, both=False)


def _judge(found: Sequence[Difference | None], *, both: bool) -> Verdict:
    known = [(d.mean - d.margin, d.mean + d.margin) for d in found if d is not None and d.margin is not None]
    if any(high < -LIMIT or (both and low > LIMIT) for low, high in known):
        return Verdict.FAILS
    if len(known) < len(found) or not known:
        return Verdict.OPEN
    inside = all(low > -LIMIT and (not both or high < LIMIT) for low, high in known)
    return Verdict.HOLDS if inside else Verdict.OPEN


def against(rows: Rows, base: str) -> str:
    """By how much the others are better than `base`, part by part; nothing if there are none."""
    texts = []
    for part, line in rows.items():
        if base not in line:
            continue
        other = line[base]
        unit, size = "points of accuracy", 100.0
        if not other.higher_is_better:
            unit, size = "% lower RMSE", -100.0 / other.value
        listed = ", ".join(
            f"{title.removeprefix('CESAR, ')} {points(gap(row, other), size)}"
            for title, row in line.items()
            if title != base
        )
        if listed:
            texts.append(f"{part} ({unit}): {listed}")
    return "; ".join(texts)
