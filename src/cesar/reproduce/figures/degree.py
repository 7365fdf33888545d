"""Appendix B: coordination at higher degrees."""

from __future__ import annotations

from cesar.reproduce import counts
from cesar.reproduce.counts import Count, Counting
from cesar.reproduce.pairs import NONE, Pair, Series
from cesar.reproduce.reproduction import Claim, Finding, Outcome, Reproduction, Verdict, needs, takes
from cesar.reproduce.tables import Scale

PAPER = {3: (0.63, 5.93), 6: (2.77, 26.87), 9: (5.49, 53.48), 12: (7.77, 75.16)}
"""Degree → GB of coordination, mean size of View2, as printed."""


def _counting(scale: Scale) -> Counting:
    nodes, degrees = (16, (3, 5)) if scale is Scale.SMOKE else (96, tuple(PAPER))
    cases = [
        case
        for degree in degrees
        for case in counts.both(f"degree {degree}", nodes, degree, sparsifier="topk", alpha=0.4)
    ]
    return counts.on_cifar10(scale, 288, (2,), cases)


def _pair(found: list[Count]) -> Pair:
    rows, labels = [], counts.labels(found)
    sizes = [counts.mean(found, label, "view2") for label in labels]
    for label, view2 in zip(labels, sizes, strict=True):
        degree = int(label.split()[1])
        faithful, ours = (counts.coordination(found, label, printed=printed) for printed in (True, False))
        known = (NONE, NONE)
        if degree in PAPER:
            total, size = PAPER[degree]
            known = (f"{total:.2f}", f"{total / size:.4f}")
        rows.append(
            (f"{degree}", f"{view2:.2f}", *known, f"{faithful:.2f}", f"{faithful / view2:.4f}", f"{ours:.2f}")
        )
    return Pair(
        title="Coordination by size of View2",
        caption="TopK selecting 40 %. A straight line: each neighbour's neighbour costs the same.",
        axes=("mean size of View2", "GB of coordination per node"),
        series=[
            Series(name="paper", x=[size for _, size in PAPER.values()], y=[gb for gb, _ in PAPER.values()]),
            *counts.coordination_series(found, sizes),
        ],
        heads=(
            "degree",
            "View2",
            "paper GB",
            "paper per neighbour",
            "measured GB",
            "per neighbour",
            "ours, GB",
        ),
        rows=rows,
    )


def _follows_view2(outcome: Outcome) -> Finding | None:
    if not outcome.counts:
        return None
    faithful, ours = (counts.per_neighbour(outcome.counts, printed=printed) for printed in (True, False))
    return Finding(
        verdict=Verdict.HOLDS if counts.farthest(faithful) < 0.05 else Verdict.FAILS,
        ours="Over the degrees the bytes of coordination per View2 neighbour stay within "
        f"{counts.farthest(faithful):.2%} of their mean in the paper's exchange, within "
        f"{counts.farthest(ours):.2%} with ours, which relays once per pair.",
    )


DEGREE = Reproduction(
    name="degree",
    place="Appendix B",
    brief="coordination at higher degrees",
    what="bytes of the coordination at degrees 3 to 12, against the size of View2",
    needs=needs("cifar10"),
    takes=takes("2 s", "10 min", "10 min", "10 min"),
    counting=_counting,
    count_pair=_pair,
    claims=(
        Claim(
            title="Coordination follows View2",
            paper="bytes per View2 neighbour within 5 % of each other",
            check=_follows_view2,
        ),
    ),
)
