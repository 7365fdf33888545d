"""The page: one section per entry, each plot beside the paper's numbers. It loads nothing from elsewhere."""

from __future__ import annotations

import html
from pathlib import Path

import cesar
from cesar.page import figure, whole_page
from cesar.reproduce.sections import Pair, Section

LAYOUT = """
.pair { display: grid; grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); gap: 0 32px; align-items: center; margin-bottom: 32px; }
.pair.tall { grid-template-columns: minmax(0, 1fr); } .pair figure { display: block; margin: 0; } .pair table, .pair thead th { font-size: 13px; }
.pair th, .pair td { padding: 5px 0 5px 12px; } body { max-width: 1400px; }
@media (max-width: 1000px) { .pair { grid-template-columns: minmax(0, 1fr); } }
"""
MOST_ROWS_BESIDE = 12


def write_page(sections: list[Section], out: Path) -> Path:
    """Write one self-contained page; where it lies."""
    links = "".join(f'<a href="#{s.entry.name}">{s.entry.name}</a>' for s in sections)
    body = "".join(map(_section, sections))
    head = "<h1>The paper, reproduced</h1><p>Open markers are the paper's own figures; all else was measured.</p>"
    page = whole_page(
        "The paper, reproduced", f"<style>{LAYOUT}</style>{head}<nav>{links}</nav>{body}", cesar.__version__
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8")
    return out


def _section(section: Section) -> str:
    found = section.entry
    about = "".join(f"<p>{html.escape(text)}</p>" for text in section.about)
    return (
        f'<section id="{found.name}"><h2>{found.name}</h2><p>{html.escape(found.place)}: {html.escape(found.what)}. '
        f"Scale: {section.scale}.</p>{about}{''.join(map(_pair, section.pairs))}</section>"
    )


def _pair(pair: Pair) -> str:
    """Side by side, or the table below the plot where it is long."""
    heads = "".join(f"<th>{html.escape(head)}" for head in pair.heads)
    body = "".join(
        "<tr><th>" + html.escape(row[0]) + "".join(f"<td>{html.escape(cell)}" for cell in row[1:])
        for row in pair.rows
    )
    table = f"<div class=scroll><table><thead><tr>{heads}<tbody>{body}</table></div>"
    shape = "pair tall" if len(pair.rows) > MOST_ROWS_BESIDE else "pair"
    drawn = figure(html.escape(pair.title), html.escape(pair.caption), pair.spec())
    return f'<div class="{shape}">{drawn}{table}</div>'
