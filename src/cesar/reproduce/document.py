"""What is written about the results: a page with every plot, and docs/results.md with the claims one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cesar
from cesar import files
from cesar.page import render, write_page
from cesar.reproduce.catalogue import CATALOGUE
from cesar.reproduce.reproduction import Outcome

MOST_ROWS_BESIDE = 12
"""A longer table stands below its plot."""


def write_report(outcomes: list[Outcome], out: Path) -> Path:
    """One self-contained page, each plot beside the paper's numbers; where it lies."""
    return write_page(
        out,
        "reproduction.html",
        title="The paper, reproduced",
        version=cesar.__version__,
        outcomes=outcomes,
        beside=MOST_ROWS_BESIDE,
    )


def write_document(outcomes: list[Outcome], out: Path) -> Path:
    """Claims first, then a section for each reproduction."""
    text = render("results.md", claims=list(_claims(outcomes)), outcomes=outcomes)
    files.write(out, text.rstrip() + "\n")
    return out


def _claims(outcomes: list[Outcome]) -> Iterator[tuple[str, str]]:
    """(title, what was measured)."""
    found = {outcome.of.name: outcome for outcome in outcomes}
    for name, of in CATALOGUE.items():
        for claim in of.claims:
            text = claim.check(found[name]) if name in found else ""
            missing = f"Not measured yet: `cesar reproduce {name}` has not come that far."
            yield claim.title, text or missing
