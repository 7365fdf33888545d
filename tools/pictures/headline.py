"""Draw docs/accuracy-bytes.svg: what nodes reach against what they send, as they train and then settle.

From the runs in docs/results/averaging/shards, which `cesar reproduce averaging --scale medium` makes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cesar_lab.paper.outcome import MEGABYTES
from cesar_lab.show.chart import Chart
from cesar_lab.show.picture import draw
from cesar_lab.show.results import Study, read_study
from cesar_lab.show.study import progress

DOCS = Path(__file__).parents[2] / "docs"
SHOWN = ("CESAR, random 30 %", "D-PSGD, everything")


def chart(study: Study) -> Chart:
    """A line for each method, from the first test to the end of settling."""
    whole = study.experiment
    found = progress(study, MEGABYTES, title="Accuracy of a node against bytes sent, CIFAR-10", log=True)
    lasting = (
        f"in {whole.rounds} rounds of training and {whole.settle_rounds} that only average (the last step up)"
    )
    return replace(
        found,
        x=replace(found.x, name=f"MB sent by a node {lasting}", unit=""),
        series=tuple(one for one in found.series if one.name in SHOWN),
    )


if __name__ == "__main__":
    draw([chart(read_study(DOCS / "results" / "averaging" / "shards"))], DOCS / "accuracy-bytes.svg")
