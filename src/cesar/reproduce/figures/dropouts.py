"""Fig. 8: nodes that crash."""

from __future__ import annotations

from cesar.reproduce.compare import gap, points
from cesar.reproduce.pairs import NONE
from cesar.reproduce.reproduction import Claim, Outcome, Reproduction, needs, takes
from cesar.reproduce.tables import Scale, Tables, base, cesar

PAPER = {0: 72.42, 10: 72.06, 20: 71.51}
"""Percent of crashes → accuracy in %, as printed; without the add-on where nobody crashes."""

SLOWER = (
    " These are tests right after a round in which some nodes were not mixed, which is most of the difference; see "
    "design/008-dropouts-in-few-rounds.md. The medium scale tests after rounds without crashes."
)


def _part(rate: int) -> str:
    return f"{rate}-percent"


def _rate(part: str) -> int:
    return int(part.removesuffix("-percent"))


def experiments(scale: Scale) -> dict[str, Tables]:
    """Ours handles dropouts from the start; the paper's add-on is measured without dropouts, too.

    At the medium scale nobody crashes in the round before a test: a node that has just missed a round is tested without
    it, and that says little about what it has learned.
    """

    def faults(rate: int) -> Tables:
        calm = {"calm_tests": True} if rate and scale is Scale.MEDIUM else {}
        return {"crash_rate": rate / 100, **calm}

    paper, ours = cesar("topk", 0.3)
    addon = {**paper, "dropout": "parameter", "label": "CESAR, paper, add-on"}
    return {
        _part(rate): base("cifar10", scale, spread="iid")
        | {"faults": faults(rate), "method": [*([paper] if not rate else []), addon, ours]}
        for rate in PAPER
    }


def _published(part: str, title: str) -> str:
    rate = _rate(part)
    return f"{PAPER[rate]:.2f}" if (rate != 0) == ("add-on" in title or title == "CESAR") else NONE


def _cost(outcome: Outcome) -> str:
    base = outcome.rows.get(_part(0), {}).get("CESAR")
    others = [
        (_rate(part), line["CESAR"])
        for part, line in outcome.rows.items()
        if part != _part(0) and "CESAR" in line
    ]
    if base is None or not others:
        return ""
    lost = ", ".join(f"{rate} %: {value - PAPER[0]:+.2f}" for rate, value in PAPER.items() if rate)
    listed = ", ".join(f"{points(*gap(row, base))} at {rate} %" for rate, row in others)
    worst = min(gap(row, base)[0] for _, row in others)
    text = f"Paper, in points: {lost}. Measured with ours, in points: {listed}."
    return text + SLOWER if worst < -0.01 else text


DROPOUTS = Reproduction(
    name="dropouts",
    place="Fig. 8",
    brief="nodes that crash",
    what="0, 10 and 20 % of the nodes crash after the coordination: accuracy, bytes, time",
    needs=needs("cifar10"),
    takes=takes("4 s", "7 min", "5 h", "2 weeks"),
    experiments=experiments,
    published=_published,
    claims=(Claim(title="Dropouts cost at most a fraction of a point", check=_cost),),
)
