"""Draw docs/accuracy-bytes.svg: what nodes reach against what they send, as they train and then settle.

From the runs in docs/results/groups/shards, which `cesar reproduce groups --scale medium` makes.
"""

from __future__ import annotations

from pathlib import Path

from cesar.experiment.results import Study, judged, mean, read_study, standard_error
from cesar.reproduce.plots import Mark, Panel, draw

DOCS = Path(__file__).parents[2] / "docs"
SHOWN = ("groups of 2, TopK 5 %, memory", "D-PSGD, everything")


def panel(study: Study) -> Panel:
    """A line for each method, from the first test to the end of settling."""
    marks, methods = [], {method.title: method for method in study.methods}
    for method in (methods[title] for title in SHOWN):
        steps = judged(study, method)
        marks.append(
            Mark(
                name=method.title,
                x=[mean(step, "bytes") / 1e6 for step in steps],
                y=[100 * mean(step, study.metric) for step in steps],
                error=[100 * (standard_error(step, study.metric) or 0.0) for step in steps],
                plain=method.name == "dpsgd",
            )
        )
    whole = study.experiment
    return Panel(
        title="Accuracy of a node against bytes sent, CIFAR-10",
        x=f"MB sent by a node in {whole.rounds} rounds of training and {whole.settle_rounds} that only average (the last step up)",
        y="",
        marks=marks,
        log=True,
    )


if __name__ == "__main__":
    found = panel(read_study(DOCS / "results" / "groups" / "shards"))
    (DOCS / "accuracy-bytes.svg").write_text(draw([found]), encoding="utf-8")
