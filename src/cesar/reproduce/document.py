"""docs/results.md: the paper's claims one by one, then every table, written from the results alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cesar.page import render
from cesar.reproduce.catalogue import CATALOGUE
from cesar.reproduce.reproduction import Outcome


def write_document(outcomes: list[Outcome], out: Path) -> Path:
    """Claims first, then a section for each reproduction."""
    text = render("results.md", claims=list(_claims(outcomes)), outcomes=outcomes)
    out.write_text(text.rstrip() + "\n", encoding="utf-8")
    return out


def _claims(outcomes: list[Outcome]) -> Iterator[tuple[str, str]]:
    """(title, what was measured)."""
    found = {outcome.of.name: outcome for outcome in outcomes}
    for name, of in CATALOGUE.items():
        for claim in of.claims:
            text = claim.check(found[name]) if name in found else ""
            missing = f"Not measured yet: `cesar reproduce {name}` has not come that far."
            yield claim.title, text or missing
