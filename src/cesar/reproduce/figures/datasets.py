"""Fig. 2 and 3: CESAR against D-PSGD over datasets, with random subsampling and with TopK."""

from __future__ import annotations

from functools import partial

from cesar.reproduce.compare import equal, listed
from cesar.reproduce.figures.settings import OWN_RULES, TABLE_III, against_plain
from cesar.reproduce.pairs import NONE
from cesar.reproduce.reproduction import Claim, Finding, Outcome, Reproduction, needs, takes
from cesar.reproduce.tables import MEDIUM, PAPER, SMALL, Scale, Tables, against_dpsgd, base, spread_for

ROUGE_L = (14.72, 14.73)
"""XSum, Section IV-B1: CESAR, D-PSGD, as printed."""


def _experiments(sparsifier: str, scale: Scale) -> dict[str, Tables]:
    names = {
        Scale.SMOKE: ["cifar10"],
        Scale.SMALL: list(SMALL),
        Scale.MEDIUM: list(MEDIUM),
        Scale.PAPER: list(PAPER),
    }[scale]
    return {
        name: base(name, scale, spread=spread_for(name, sparsifier)) | against_dpsgd(sparsifier, scale)
        for name in names
    }


def _published(sparsifier: str, part: str, title: str) -> str:
    column = 0 if title.startswith("CESAR") else 1
    if part == "cifar10":
        return f"{TABLE_III[f'{sparsifier}-6-30'].accuracy[column]:.2f}"
    if part == "xsum" and sparsifier == "random":
        return f"{ROUGE_L[column] / 100:.4f}"
    return NONE


def _matches(outcome: Outcome) -> Finding | None:
    found = against_plain(outcome)
    if not found:
        return None
    return Finding(
        verdict=equal(list(found.values())),
        ours=f"CESAR minus D-PSGD at the end of training, in points of accuracy or hundredths of RMSE: {listed(found)}.",
        why=OWN_RULES,
    )


def _over_datasets(sparsifier: str, place: str, name: str, smoke: str) -> Reproduction:
    return Reproduction(
        name=f"datasets-{sparsifier}",
        place=place,
        brief=f"{name} over datasets",
        what=f"CESAR against D-PSGD with {name}, over datasets",
        needs=needs("cifar10, movielens", ", ".join(PAPER)),
        takes=takes(smoke, "8 min", "5 h", "weeks, with a GPU"),
        experiments=partial(_experiments, sparsifier),
        published=partial(_published, sparsifier),
        claims=(
            Claim(
                title=f"Matches D-PSGD on every dataset, with {name}",
                paper="curves that lie on one another",
                check=_matches,
            ),
        ),
    )


DATASETS_RANDOM = _over_datasets("random", "Fig. 2", "random subsampling", "1 s")
DATASETS_TOPK = _over_datasets("topk", "Fig. 3", "TopK", "2 s")
