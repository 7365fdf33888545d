"""`cesar attack`: what is left to learn from recorded runs, as tables, JSON, plots and a section of a document."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from cesar.base.errors import ConfigError
from cesar.cli.options import AsJson, DataDir
from cesar.cli.output import console, notices
from cesar_lab.show.table import Table

if TYPE_CHECKING:
    from cesar_lab.attack.filter import FilterResult
    from cesar_lab.attack.inference import InferenceResult
    from cesar_lab.attack.leakage import LeakageResult

Result = TypeVar("Result", bound="InferenceResult | LeakageResult | FilterResult")

app = typer.Typer(no_args_is_help=True, help="Attack recorded runs, to see what protection is worth.")

Directories = Annotated[list[Path], typer.Argument(help="Experiment directories with recorded rounds.")]
SampleCount = Annotated[
    int,
    typer.Option(
        min=1, help="At most this number of training samples, and as many test samples, per attack."
    ),
]
Seed = Annotated[int, typer.Option(help="Of who attacks whom, and with which samples.")]


def _attack(
    directories: list[Path],
    name: Literal["membership", "leakage", "filter"],
    attack: Callable[[Path], list[Result]],
    settings: dict[str, int],
    show: Callable[[Path, list[Result]], None],
    *,
    as_json: bool,
) -> None:
    """Attack one run after the other, keep the results beside it, and show them."""
    from cesar_lab.attack import document  # noqa: PLC0415

    outcome = {}
    for directory in directories:
        with notices.status(f"attacking {directory}"):
            results = attack(directory)
        outcome[str(directory)] = document.plain(results)
        document.save(directory, name, outcome[str(directory)], settings)
        show(directory, results)
    if as_json:
        typer.echo(json.dumps(outcome))


@app.command("membership")
def membership_command(
    directories: Directories,
    rounds: Annotated[
        list[int] | None, typer.Option("--round", help="A recorded round; default all. May be repeated.")
    ] = None,
    samples: SampleCount = 500,
    seed: Seed = 1,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Was this sample trained on? Ask a neighbour's model alone, and averaged with further ones (Fig. 7)."""
    from cesar_lab.attack import document  # noqa: PLC0415  (torch takes seconds to import)
    from cesar_lab.attack.inference import infer_membership  # noqa: PLC0415

    def show(directory: Path, results: list[InferenceResult]) -> None:
        page = document.write_charts(directory, results)
        if not as_json:
            _print(directory, document.membership_table(results))
            console.print(f"plot: [bold]{page}[/]")

    settings = {"samples": samples, "seed": seed}
    attack = partial(infer_membership, rounds=rounds or (), samples=samples, seed=seed, data_dir=data_dir)
    _attack(directories, "membership", attack, settings, show, as_json=as_json)


def _print(directory: Path, table: Table) -> None:
    console.print(replace(table, title=f"{directory}: {table.title}").terminal())


@app.command("leakage")
def leakage_command(
    directories: Directories,
    window: Annotated[int, typer.Option(help="Use this number of the last recorded rounds.")] = 20,
    receivers: Annotated[int, typer.Option(min=1, help="How many nodes attack in each run.")] = 8,
    samples: SampleCount = 500,
    seed: Seed = 1,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """What can a curious node find out about single neighbours from its own sums of many rounds?

    The estimators take models for nearly still. They do not use that averaging couples the sums of different rounds. An attacker
    that does finds out far more (docs/privacy.md).
    """
    from cesar_lab.attack import document  # noqa: PLC0415
    from cesar_lab.attack.leakage import leakage  # noqa: PLC0415

    def show(directory: Path, results: list[LeakageResult]) -> None:
        if not as_json:
            _print(directory, document.leakage_table(results))

    settings = {"samples": samples, "seed": seed}
    attack = partial(
        leakage, window=window, receivers=receivers, samples=samples, seed=seed, data_dir=data_dir
    )
    _attack(directories, "leakage", attack, settings, show, as_json=as_json)


@app.command("filter")
def filter_command(
    directories: Directories,
    receivers: Annotated[int, typer.Option(min=1, help="How many nodes attack in each run.")] = 8,
    samples: SampleCount = 500,
    seed: Seed = 1,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """What can a curious node find out if it follows all models, round by round, by the public rules of averaging?"""
    from cesar_lab.attack import document  # noqa: PLC0415
    from cesar_lab.attack.filter import follow_runs  # noqa: PLC0415

    def show(directory: Path, results: list[FilterResult]) -> None:
        if not as_json:
            _print(directory, document.filter_table(results))

    settings = {"samples": samples, "seed": seed}
    attack = partial(follow_runs, receivers=receivers, samples=samples, seed=seed, data_dir=data_dir)
    _attack(directories, "filter", attack, settings, show, as_json=as_json)


@app.command("document")
def document_command(
    directories: Directories,
    out: Annotated[Path, typer.Option(help="The Markdown file whose section is written.")],
) -> None:
    """Write the figures of earlier attacks on these runs into a document, between its marker lines."""
    from cesar_lab.attack import document  # noqa: PLC0415

    if out.suffix != ".md":
        raise ConfigError(f"{out} is no Markdown file; give --out NAME.md")
    console.print(f"written: [bold]{document.write_section(directories, out)}[/]")
