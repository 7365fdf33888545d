"""Draw docs/accuracy-bytes.svg: what nodes reach against what they send, as training ends and as they settle.

From the runs in docs/results/settling, which `cesar run docs/results/settling.toml` makes.
"""

from __future__ import annotations

from pathlib import Path

from cesar.experiment.results import Study, mean, read_study, settling, standard_error
from cesar.reproduce.plots import Mark, Panel, draw

DOCS = Path(__file__).parents[2] / "docs"


def panel(study: Study) -> Panel:
    """A line for each method, from the end of training to the end of settling."""
    marks = []
    for method in study.methods:
        steps = settling(study, method)
        marks.append(
            Mark(
                name=method.title,
                x=[mean(step, "bytes") / 1e6 for step in steps],
                y=[100 * mean(step, study.metric) for step in steps],
                error=[100 * (standard_error(step, study.metric) or 0.0) for step in steps],
                plain=method.name == "dpsgd",
            )
        )
    rounds = study.experiment.rounds
    return Panel(
        title="Accuracy of a node against bytes sent, CIFAR-10",
        x=f"MB sent by a node: {rounds} rounds of training, then {len(steps) - 1} that only average",
        y="",
        marks=marks,
        log=True,
    )


if __name__ == "__main__":
    found = panel(read_study(DOCS / "results" / "settling"))
    (DOCS / "accuracy-bytes.svg").write_text(draw([found]), encoding="utf-8")
