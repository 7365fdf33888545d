"""The page: one section per figure, each plot beside the paper's numbers. It loads nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path

import cesar
from cesar.page import render_page
from cesar.reproduce.reproduction import Outcome

MOST_ROWS_BESIDE = 12
"""A longer table stands below its plot."""


def write_page(outcomes: list[Outcome], out: Path) -> Path:
    """Write one self-contained page; where it lies."""
    page = render_page(
        "reproduction.html",
        title="The paper, reproduced",
        version=cesar.__version__,
        outcomes=outcomes,
        beside=MOST_ROWS_BESIDE,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8")
    return out
