"""`cesar data`: which datasets there are, and how to get them.

The catalogue and the downloads know nothing of torch, so that `cesar --help` stays quick; a test watches it.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from cesar.cli.options import AsJson
from cesar.cli.output import console, notices
from cesar_lab.data import datasets, fetch

app = typer.Typer(no_args_is_help=True, help="Find and fetch the datasets of the experiments.")

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", help="Look here first, and fetch to here; then $CESAR_DATA, then the user's cache."
    ),
]


@app.command("list")
def list_datasets(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List what there is, where it was found, and what fetches the rest."""
    rows = [_row(name, data_dir) for name in datasets.names()]
    searched = [str(root) for root in datasets.roots(data_dir)]
    if as_json:
        typer.echo(json.dumps({"looked_in": searched, "datasets": rows}))
        return
    table = Table(title="Datasets")
    for heading in ("name", "task", "train", "test"):
        table.add_column(heading, justify="right" if heading in {"train", "test"} else "left", no_wrap=True)
    table.add_column("found in, or how to get it", overflow="fold")
    for row in rows:
        place = escape(row["found"]) if row["found"] else f"[yellow]missing:[/] {escape(row['get'])}"
        table.add_row(row["name"], row["task"], _count(row["train"]), _count(row["test"]), place)
    console.print(table)
    notes = [f"licence of {row['name']}: {row['licence']}" for row in rows]
    console.print(
        "\n".join([f"looked in: {', '.join(searched)}", *notes]), style="dim", markup=False, soft_wrap=True
    )


def _row(name: str, data_dir: Path | None) -> dict[str, Any]:
    """What `list` says about one dataset."""
    entry = datasets.describe(name)
    found, sizes, get = None, entry.sizes, datasets.command(name, data_dir)
    if not entry.parts:
        found = "scikit-learn" if importlib.util.find_spec("sklearn") else None
        get = "pip install '.[lab]'"
    elif all(folders := [part.search(datasets.roots(data_dir)) for part in entry.parts]):
        present = [folder for folder in folders if folder]
        found, sizes = str(present[0]), datasets.sizes(name, present)
    train, test = sizes or (None, None)
    return {
        "name": name,
        "title": entry.title,
        "task": entry.task,
        "found": found,
        "train": train,
        "test": test,
        "licence": entry.licence,
        "get": get,
    }


def _count(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


@app.command("get")
def get_dataset(
    name: Annotated[str, typer.Argument(help="One of the names that `cesar data list` shows.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a dataset from its official address, verify it and unpack it.

    An interrupted download goes on where it stopped. Where the terms want a person's consent, this says what
    to do by hand.
    """
    entry = datasets.describe(name)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=notices,
        transient=True,
    ) as bar:
        task = bar.add_task(name, total=None, visible=False)
        folders = fetch.fetch(
            name,
            data_dir,
            lambda done, total: bar.update(task, completed=done, total=total, visible=True),
        )
    if as_json:
        typer.echo(json.dumps({"name": name, "folders": [str(folder) for folder in folders]}))
    elif not folders:
        console.print(f"{name} needs no download: {entry.licence}", markup=False)
    else:
        console.print(f"{entry.title} is in {' and '.join(map(str, folders))}", markup=False, soft_wrap=True)
        console.print(f"licence: {entry.licence}", style="dim", markup=False)
