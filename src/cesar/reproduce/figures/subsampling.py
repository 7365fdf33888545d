"""Not in the paper: independent against coordinated subsampling."""

from __future__ import annotations

from cesar.reproduce.compare import against, equal, gap
from cesar.reproduce.reproduction import Claim, Finding, Outcome, Reproduction, needs, takes
from cesar.reproduce.tables import Scale, Tables, base, cesar

COORDINATED = "CESAR, coordinated"
RULE = (
    "Where all select the same positions, everything arrives or nothing, so both averaging rules are one. It is `arrived` that "
    "puts independent selections ahead: under `neighbours` they learn as much as coordinated ones (the last table of groups, below)."
)


def experiments(scale: Scale) -> dict[str, Tables]:
    """The same expected share, and so the same bytes but for seeds of a few bytes."""
    method = [cesar("random", 0.3)[1], {**cesar("coordinated", 0.3)[1], "label": COORDINATED}]
    parts = {"cifar10": "shards", "movielens": None}
    return {name: base(name, scale, spread=spread) | {"method": method} for name, spread in parts.items()}


def _coordinated(outcome: Outcome) -> Finding | None:
    rows = [line for line in outcome.rows.values() if {"CESAR", COORDINATED} <= set(line)]
    if not rows:
        return None
    found = [gap(line[COORDINATED], line["CESAR"]) for line in rows]
    return Finding(verdict=equal(found), ours=f"{against(outcome.rows, 'CESAR')}.", why=RULE)


SUBSAMPLING = Reproduction(
    name="subsampling",
    place="not in the paper",
    brief="independent against coordinated subsampling",
    what="independent against coordinated subsampling at equal bytes",
    needs=needs("cifar10, movielens"),
    takes=takes("2 s", "5 min", "80 min", "4 days"),
    experiments=experiments,
    claims=(
        Claim(
            title="Coordinated subsampling learns as much as independent, at equal bytes", check=_coordinated
        ),
    ),
)
