"""A table as a value, and how it reads in a terminal and in Markdown; pages have `table.html`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rich import box
from rich import table as rich_table

NONE = "–"
"""What is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Heads over rows of cells, which are ready to be read.

    Attributes:
        units: of the columns, in the heads' order; without any, none has one.
        names: how many columns from the left say what a row is about; all others hold figures.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    units: tuple[str, ...] = ()
    title: str = ""
    caption: str = ""
    names: int = 1

    def __post_init__(self) -> None:
        assert {len(row) for row in self.rows} <= {len(self.heads)}
        assert len(self.units) in (0, len(self.heads))

    @classmethod
    def of(
        cls, columns: Mapping[tuple[str, str], Sequence[str]], *, caption: str = "", names: int = 1
    ) -> Table:
        """(head, unit) → cells from top to bottom. A column in which nothing is known is left out."""
        known = {head: cells for head, cells in columns.items() if set(cells) != {NONE}}
        return cls(
            heads=tuple(head for head, _ in known),
            units=tuple(unit for _, unit in known),
            rows=tuple(zip(*known.values(), strict=True)),
            caption=caption,
            names=names,
        )

    @property
    def titles(self) -> tuple[str, ...]:
        """Heads with their units."""
        units = self.units or ("",) * len(self.heads)
        return tuple(
            f"{head} ({unit})" if unit else head for head, unit in zip(self.heads, units, strict=True)
        )

    def without(self, *heads: str) -> Table:
        """The table with fewer columns, for a narrow place."""
        kept = [n for n, head in enumerate(self.heads) if head not in heads]
        return replace(
            self,
            heads=tuple(self.heads[n] for n in kept),
            units=tuple(self.units[n] for n in kept) if self.units else (),
            rows=tuple(tuple(row[n] for n in kept) for row in self.rows),
        )

    def markdown(self) -> str:
        """The heads and rows alone: title and caption are the document's."""
        lines = [_line(self.titles), f"|{'---|' * len(self.heads)}", *map(_line, self.rows)]
        return "\n".join(lines)

    def terminal(self) -> rich_table.Table:
        """With heads over as many lines as they have words, because figures are narrow."""
        shown = rich_table.Table(
            title=self.title or None,
            caption=self.caption or None,
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        for number, title in enumerate(self.titles):
            if number < self.names:
                shown.add_column(title, min_width=10)
            else:
                shown.add_column(title.replace(" ", "\n"), justify="right", no_wrap=True)
        for row in self.rows:
            shown.add_row(*row)
        return shown


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
