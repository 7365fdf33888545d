"""Options that several commands have, with their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Where datasets lie; else $CESAR_DATA, else the user's cache."),
]
Workers = Annotated[int | None, typer.Option(min=1, help="Threads; default one per core.")]
Nodes = Annotated[int, typer.Option(min=2, help="Number of nodes.")]
Degree = Annotated[int, typer.Option(help="Neighbours of the receiver (δ).")]
Masks = Annotated[
    int | None, typer.Option(help="Masks that a parameter must carry to be sent (s); default 1.")
]
CellSize = Annotated[int | None, typer.Option("--cells", help="Members that a cell has at least (m).")]
Share = Annotated[float, typer.Option(help="Fraction of the parameters to be shared (β).")]
Alpha = Annotated[float, typer.Option(help="Fraction that each node selects (α).")]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds to time; the median counts.")]
Net = Annotated[
    Path, typer.Argument(metavar="NET", help="The network's folder, made by `cesar network init`.")
]
SampleSeed = Annotated[int, typer.Option(help="Of graph, selections and samples.")]
Settle = Annotated[
    int,
    typer.Option(
        "--settle", min=0, help="Rounds of averaging without training at the end; the same at all peers."
    ),
]
