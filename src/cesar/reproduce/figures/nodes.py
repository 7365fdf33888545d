"""Appendix A: coordination in larger networks."""

from __future__ import annotations

from cesar.reproduce import counts
from cesar.reproduce.counts import Count, Counting
from cesar.reproduce.pairs import NONE, Pair, Series
from cesar.reproduce.reproduction import Claim, Finding, Outcome, Reproduction, Verdict, needs, takes
from cesar.reproduce.tables import Scale

PAPER = {48: 2.25, 96: 2.39, 192: 2.48, 288: 2.49}
"""Nodes → GB of coordination, as printed."""


def _counting(scale: Scale) -> Counting:
    sizes = (12, 24) if scale is Scale.SMOKE else tuple(PAPER)
    cases = [
        case
        for nodes in sizes
        for case in counts.both(f"{nodes} nodes", nodes, 5, sparsifier="topk", alpha=0.4)
    ]
    return counts.on_cifar10(scale, 288, (2,), cases)


def _pair(found: list[Count]) -> Pair:
    rows, labels = [], counts.labels(found)
    numbers = [int(label.split()[0]) for label in labels]
    for label, nodes in zip(labels, numbers, strict=True):
        faithful, ours = (counts.coordination(found, label, printed=printed) for printed in (True, False))
        view2 = counts.mean(found, label, "view2")
        known = f"{PAPER[nodes]:.2f}" if nodes in PAPER else NONE
        cells = (f"{view2:.2f}", known, f"{faithful:.2f}", f"{faithful / view2:.4f}", f"{ours:.2f}")
        rows.append((f"{nodes}", *cells))
    return Pair(
        title="Coordination by number of nodes",
        caption="5-regular graphs, TopK selecting 40 %. Only the size of View2 grows with the network.",
        axes=("nodes", "GB of coordination per node"),
        series=[
            Series(name="paper", x=list(PAPER), y=list(PAPER.values())),
            *counts.coordination_series(found, [float(n) for n in numbers]),
        ],
        heads=("nodes", "View2", "paper GB", "measured GB", "GB per View2 neighbour", "ours, GB"),
        rows=rows,
    )


def _grows_with_view2(outcome: Outcome) -> Finding | None:
    if not outcome.counts:
        return None
    values = counts.per_neighbour(outcome.counts, printed=True)
    sizes = sorted({row.nodes for row in outcome.counts})
    return Finding(
        verdict=Verdict.HOLDS if counts.farthest(values) < 0.01 else Verdict.FAILS,
        ours=f"From {sizes[0]} to {sizes[-1]} nodes the bytes of coordination per View2 neighbour stay within "
        f"{counts.farthest(values):.2%} of their mean.",
        why="What grows a little is View2: in small networks neighbours' neighbours coincide.",
    )


NODES = Reproduction(
    name="nodes",
    place="Appendix A",
    brief="coordination in larger networks",
    what="bytes of the coordination in networks of 48 to 288 nodes",
    needs=needs("cifar10"),
    takes=takes("2 s", "15 min", "15 min", "15 min"),
    counting=_counting,
    count_pair=_pair,
    claims=(
        Claim(
            title="Coordination does not grow with the network",
            paper="2.25 to 2.49 GB from 48 to 288 nodes",
            check=_grows_with_view2,
        ),
    ),
)
