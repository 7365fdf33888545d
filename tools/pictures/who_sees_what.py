"""Draw docs/who-sees-what.svg: one group's values on their way to a peer, and what each party gets to see of them.

Every number is real: eight peers have trained on their own part of the handwritten digits, and make one round.

python tools/pictures/who_sees_what.py
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import cesar
from cesar import graphs
from cesar.packing import unpack
from cesar.wire import Frame, Kind, Share, read_header

OUT = Path(__file__).parents[2] / "docs" / "who-sees-what.svg"
PEERS, DEGREE, GROUP, RECEIVER, SHOWN = 8, 6, 3, 0, 3
CLASSES = 10
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What happened in one group: values by sender, words as the receiver got them, and what they add up to."""

    group: tuple[int, ...]
    values: NDArray[np.float32]
    words: NDArray[np.uint32]
    sums: NDArray[np.float64]


def trained() -> NDArray[np.float32]:
    """Eight models: a linear classifier each, after some steps on the peer's own digits."""
    images, labels = load_digits(return_X_y=True)
    parts = [np.arange(peer, len(labels), PEERS) for peer in range(PEERS)]
    inked = np.all([images[rows].any(axis=0) for rows in parts], axis=0)  # some pixels are always white
    inputs, models = images[:, inked] / 16, []
    for rows in parts:
        weights = np.zeros((CLASSES, inked.sum()))
        for _ in range(30):
            scores = np.exp(inputs[rows] @ weights.T)
            error = scores / scores.sum(axis=1, keepdims=True) - np.eye(CLASSES)[labels[rows]]
            weights -= 0.5 * error.T @ inputs[rows] / len(rows)
        models.append(weights.ravel())
    return np.array(models, dtype=np.float32)


def one_round() -> Round:
    """A round of the real engine, watched at the receiver."""
    models, graph = trained(), graphs.numbered(PEERS, DEGREE, 1)
    method = cesar.Cesar(sparsifier=cesar.RandomSubsampling(0.30), group_size=GROUP, ring_bits=32)
    shares: dict[int, Frame] = {}

    def watch(sender: int, recipient: int, frame: Frame) -> None:
        if frame.kind is Kind.SHARE and recipient == RECEIVER:
            shares[sender] = frame

    result = cesar.Ensemble(graph, method, models.shape[1], seed=1).round(models, watch=watch)
    view = sorted(graph[RECEIVER])
    for group in result.groups[RECEIVER]:
        words = np.array([_words(shares[i], view) for i in group])
        found = _positions(models, result.vectors[RECEIVER], group, words)
        if found is not None:
            positions, scale = found
            apart = np.sort(np.argsort(-models[list(group)][:, positions].std(axis=0))[:SHOWN])
            total = words[:, apart].sum(axis=0, dtype=np.uint32).view(np.int32) / scale
            values = models[list(group)][:, positions[apart]]
            return Round(group=group, values=values, words=words[:, apart], sums=total)
    raise SystemExit("no group sent anything in this round")


def _words(frame: Frame, view: list[int]) -> NDArray[np.uint32]:
    share = Share.decode(read_header(frame.payload)[1], view, explicit=False)
    return unpack(share.values, 32, frame.parameters)


def _positions(
    models: NDArray[np.float32],
    after: NDArray[np.float32],
    group: tuple[int, ...],
    words: NDArray[np.uint32],
) -> tuple[NDArray[np.int64], float] | None:
    """Where the group's values belong, and the scale: groups take turns every 64 positions, one at each position."""
    changed = np.flatnonzero(after != models[RECEIVER])
    for turn in range(2):
        positions = changed[(changed // 64) % 2 == turn]
        sums = models[list(group)][:, positions].sum(axis=0, dtype=np.float64)
        if len(positions) != words.shape[1]:
            continue
        whole = words.sum(axis=0, dtype=np.uint32).view(np.int32)
        scale = 2.0 ** np.round(np.log2(np.abs(whole).sum() / np.abs(sums).sum()))
        if np.allclose(whole / scale, sums, atol=1e-6):
            return positions, float(scale)
    return None


def _numbers(values: NDArray[np.floating]) -> str:
    return "  ".join(f"{value:+.4f}" for value in values).replace("-", "−")


def _hex(words: NDArray[np.uint32]) -> str:
    return "  ".join(f"{word:08x}" for word in words)


def draw() -> str:
    """The picture."""
    seen = one_round()
    mean = len(seen.group)
    parts = [
        (
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1120 534" role="img" xml:space="preserve" '
            "font-family=\"system-ui, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif\" font-size=\"17\">"
        ),
        "<title>What each party sees in a round</title>",
        f"<style>{STYLE}</style>",
        '<rect class="card" x="1" y="1" width="1118" height="532" rx="8"/>',
        _text(24, 40, f"{mean} peers, each with its own model", "bold"),
        _text(420, 40, "what they send", "bold"),
        _text(790, 40, f"what peer {RECEIVER} can read", "bold"),
        '<rect class="sees" x="790" y="62" width="306" height="322" rx="8"/>',
    ]
    for k, peer in enumerate(seen.group):
        y = 62 + 84 * k
        parts += [
            f'<rect class="box" x="24" y="{y}" width="296" height="74" rx="8"/>',
            _text(40, y + 28, f"peer {peer}", "bold"),
            _text(40, y + 58, _numbers(seen.values[k]), "ink mono"),
            f'<path class="wire" d="M322 {y + 40} H772"/><path class="tip" d="M772 {y + 33} l14 7 l-14 7 z"/>',
            _text(420, y + 30, _hex(seen.words[k]), "noise mono"),
            _text(806, y + 46, f"from peer {peer}: noise", "noise"),
        ]
    parts += [
        (
            '<path class="mask" d="M302 98 C372 110 372 170 302 182 M302 190 C372 198 372 254 302 266'
            ' M302 88 C416 120 416 244 302 276"/>'
        ),
        _text(
            24,
            336,
            "Every pair shares a secret mask (dotted). One adds it to its values, the other",
            "soft small",
        ),
        _text(24, 358, "takes it off. In the sum of all three the masks are gone.", "soft small"),
        '<path d="M806 316 H1080" stroke="#2da44e" stroke-width="2"/>',
        _text(806, 342, f"the sum of the {mean}:", "sum bold"),
        _text(806, 368, _numbers(seen.sums), "sum mono"),
    ]
    cells = (
        (
            24,
            f"Peer {RECEIVER}",
            "sees sums over whole groups of its",
            "neighbours, the same groups in all rounds,",
            "and never the model of one.",
        ),
        (
            398,
            "Somebody on the line",
            "sees encrypted connections (mutual TLS),",
            "how much is sent, and when.",
            "",
        ),
        (
            772,
            "A server",
            "There is none. One person signs the list",
            "of members at the start, and is not",
            "needed while peers train.",
        ),
    )
    for x, head, *lines in cells:
        parts.append(_text(x, 416, head, "ink bold"))
        parts += [_text(x, 440 + 22 * n, line, "ink small") for n, line in enumerate(lines) if line]
    parts.append(
        _text(
            24,
            518,
            f"Real values: {PEERS} peers, handwritten digits, one round, 30 % of each model sent (tools/pictures/who_sees_what.py).",
            "soft small",
        )
    )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(x: int, y: int, text: str, kind: str = "ink") -> str:
    classes = kind if kind.split(maxsplit=1)[0] in {"ink", "soft", "noise", "sum"} else f"ink {kind}"
    return f'<text x="{x}" y="{y}" class="{classes}">{text}</text>'


if __name__ == "__main__":
    OUT.write_text(draw(), encoding="utf-8")
