"""Draw docs/who-sees-what.svg: the updates of a cell on their way to one member, and what each party gets to see of them.

Every number is real: four sites have trained on their own part of the handwritten digits, and make one round.

python tools/pictures/who_sees_what.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from cesar_lab.show import watched
from cesar_lab.show.watched import KEEPER, SITES, WatchedRound

OUT = Path(__file__).parents[2] / "docs" / "who-sees-what.svg"
SHOWN = 3
STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de; }
  .box { fill: #f3f6fa; stroke: #8c959f; }
  .sees { fill: #eaf5ec; stroke: #2da44e; }
  .ink { fill: #1f2328; }
  .soft { fill: #57606a; }
  .noise { fill: #b3400a; }
  .sum { fill: #1a7f37; }
  .mono { font-family: ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; font-size: 16px; }
  .bold { font-weight: 600; }
  .small { font-size: 15px; }
  .wire { stroke: #b3400a; stroke-width: 2; fill: none; }
  .tip { fill: #b3400a; }
  .mask { stroke: #b3400a; stroke-width: 2; stroke-dasharray: 3 5; fill: none; }
"""


def one_round() -> WatchedRound:
    """The three numbers of the first slice in which the sites differ most; pixels that are always white are left out."""
    images, labels = load_digits(return_X_y=True)
    inked = np.all([images[site::SITES].any(axis=0) for site in range(SITES)], axis=0)
    seen = watched.one_round(watched.trained(images[:, inked] / 16, labels))
    apart = np.sort(np.argsort(-seen.values.std(axis=0))[:SHOWN])
    return replace(seen, values=seen.values[:, apart], words=seen.words[:, apart], sums=seen.sums[apart])


def _numbers(values: NDArray[np.floating]) -> str:
    return "  ".join(f"{value:+.4f}" for value in values).replace("-", "−")


def _hex(words: NDArray[np.uint32]) -> str:
    return "  ".join(f"{word:08x}" for word in words)


def draw() -> str:
    """The picture."""
    seen = one_round()
    parts = [
        (
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1120 616" role="img" xml:space="preserve" '
            "font-family=\"system-ui, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif\" font-size=\"19\">"
        ),
        "<title>What each party sees in a round of a cell</title>",
        f"<style>{STYLE}</style>",
        '<rect class="card" x="1" y="1" width="1118" height="614" rx="8"/>',
        _text(24, 40, "what sites of a cell trained", "bold"),
        _text(420, 40, "what they send", "bold"),
        _text(790, 40, f"what site {KEEPER} can read", "bold"),
        '<rect class="sees" x="790" y="62" width="306" height="322" rx="8"/>',
    ]
    for k, site in enumerate(seen.senders):
        y = 62 + 84 * k
        parts += [
            f'<rect class="box" x="24" y="{y}" width="296" height="74" rx="8"/>',
            _text(40, y + 28, f"update of site {site}", "bold"),
            _text(40, y + 58, _numbers(seen.values[k]), "ink mono"),
            f'<path class="wire" d="M322 {y + 40} H772"/><path class="tip" d="M772 {y + 33} l14 7 l-14 7 z"/>',
            _text(420, y + 30, _hex(seen.words[k]), "noise mono"),
            _text(806, y + 46, f"from site {site}: noise", "noise"),
        ]
    count = len(seen.senders)
    parts += [
        (
            '<path class="mask" d="M302 98 C372 110 372 170 302 182 M302 190 C372 198 372 254 302 266'
            ' M302 88 C416 120 416 244 302 276"/>'
        ),
        _text(
            24, 340, "Every pair of sites shares a secret mask (dotted): one adds it to its update,", "soft"
        ),
        _text(24, 366, "the other takes it off. In the sum of the whole cell all masks are gone.", "soft"),
        '<path d="M806 316 H1080" stroke="#2da44e" stroke-width="2"/>',
        _text(806, 342, f"the sum of the {count}:", "sum bold"),
        _text(806, 368, _numbers(seen.sums), "sum mono"),
        '<path d="M24 406 H1096" stroke="#d0d7de" stroke-width="2"/>',
        _text(24, 440, "then cells average", "bold"),
        '<rect class="sees" x="24" y="456" width="296" height="60" rx="8"/>',
        _text(40, 492, "model of this cell: no secret", "ink"),
        '<path d="M338 486 H772" stroke="#2da44e" stroke-width="2"/>',
        '<path d="M352 479 l-14 7 l14 7 z M758 479 l14 7 l-14 7 z" fill="#2da44e"/>',
        _text(420, 474, "both can read it; TLS on the way", "sum"),
        '<rect class="sees" x="790" y="456" width="306" height="60" rx="8"/>',
        _text(806, 492, "model of another cell", "ink"),
        _text(
            24,
            554,
            "Somebody on the line sees encrypted connections, how much is sent, and when. There is no server.",
            "ink",
        ),
        _text(
            24,
            590,
            f"Real values: {SITES} sites, handwritten digits, one round of the engine (tools/pictures/who_sees_what.py).",
            "soft small",
        ),
    ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(x: int, y: int, text: str, kind: str = "ink") -> str:
    classes = kind if kind.split(maxsplit=1)[0] in {"ink", "soft", "noise", "sum"} else f"ink {kind}"
    return f'<text x="{x}" y="{y}" class="{classes}">{text}</text>'


if __name__ == "__main__":
    OUT.write_text(draw(), encoding="utf-8")
