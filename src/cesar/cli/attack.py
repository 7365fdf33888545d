"""`cesar attack`: what is left to learn from recorded runs, as tables, JSON, plots and a section of a document."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from cesar.cli.options import AsJson, DataDir
from cesar.cli.output import console, notices
from cesar.errors import ConfigError

if TYPE_CHECKING:
    from cesar.attack.leakage import LeakageResult
    from cesar.attack.membership import MembershipResult

Result = TypeVar("Result", bound="MembershipResult | LeakageResult")

app = typer.Typer(no_args_is_help=True, help="Attack recorded runs, to see what protection is worth.")

Directories = Annotated[list[Path], typer.Argument(help="Experiment directories with recorded rounds.")]
SampleCount = Annotated[
    int, typer.Option(min=1, help="At most so many training and so many test samples per attack.")
]
Seed = Annotated[int, typer.Option(help="Of who attacks whom, and with which samples.")]


def _attack(
    directories: list[Path],
    name: Literal["membership", "leakage"],
    attack: Callable[[Path], list[Result]],
    settings: dict[str, int],
    show: Callable[[Path, list[Result]], None],
    *,
    as_json: bool,
) -> None:
    """Attack one run after the other, keep the results beside it, and show them."""
    from cesar.attack import document  # noqa: PLC0415

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
    from cesar.attack import document  # noqa: PLC0415  (torch takes seconds to import)
    from cesar.attack.membership import membership  # noqa: PLC0415

    def show(directory: Path, results: list[MembershipResult]) -> None:
        page = document.write_plots(directory, results)
        if not as_json:
            console.print(_membership_table(directory, results))
            console.print(f"plot: [bold]{page}[/]")

    settings = {"samples": samples, "seed": seed}
    attack = partial(membership, rounds=rounds or (), samples=samples, seed=seed, data_dir=data_dir)
    _attack(directories, "membership", attack, settings, show, as_json=as_json)


def _membership_table(directory: Path, results: list[MembershipResult]) -> Table:
    table = Table(
        title=f"{directory}: membership AUC, mean over victims ± standard error",
        caption="in brackets: against test samples of the victim's own classes alone",
    )
    table.add_column("models", justify="right")
    for result in results:
        table.add_column(result.title, justify="right", no_wrap=True)
    for m in range(max(len(result.sums) for result in results)):
        cells = [result.sums[m] if m < len(result.sums) else None for result in results]
        table.add_row(
            str(m + 1),
            *(f"{s.auc:.3f} ± {s.auc_error:.3f} ({s.own_classes:.3f})" if s else "" for s in cells),
        )
    return table


@app.command("leakage")
def leakage_command(
    directories: Directories,
    window: Annotated[int, typer.Option(help="Use so many of the last recorded rounds.")] = 20,
    receivers: Annotated[int, typer.Option(min=1, help="So many nodes attack in each run.")] = 8,
    samples: SampleCount = 500,
    seed: Seed = 1,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """What can a curious node find out about single neighbours from its own sums of many rounds?"""
    from cesar.attack.leakage import leakage  # noqa: PLC0415

    def show(directory: Path, results: list[LeakageResult]) -> None:
        if not as_json:
            console.print(_leakage_table(directory, results))

    settings = {"samples": samples, "seed": seed}
    attack = partial(
        leakage, window=window, receivers=receivers, samples=samples, seed=seed, data_dir=data_dir
    )
    _attack(directories, "leakage", attack, settings, show, as_json=as_json)


def _leakage_table(directory: Path, results: list[LeakageResult]) -> Table:
    first = results[0]
    table = Table(
        title=f"{directory}: {first.receivers} receivers, sums of {len(first.rounds)} rounds",
        box=SIMPLE_HEAD,
        padding=0,
        caption="membership AUC of the true model, the estimate, and the mean that tells nobody (of a group) apart",
    )
    table.add_column("method", no_wrap=True)
    for heading in ("identified", "error", "of mean", "recovered", "true", "est.", "mean"):
        table.add_column(heading, justify="right", min_width=max(map(len, heading.split())))
    for row in results:
        areas = (f"{area:.3f}" for area in (row.auc_true, row.auc_apart, row.auc_mean))
        errors = (f"{error:.3f}" for error in (row.error, row.error_mean))
        table.add_row(row.title, f"{row.identified:.1%}", *errors, f"{row.recovered:.1%}", *areas)
    return table


@app.command("document")
def document_command(
    directories: Directories,
    out: Annotated[Path, typer.Option(help="The Markdown file whose section is written.")],
) -> None:
    """Write the figures of earlier attacks on these runs into a document, between its marker lines."""
    from cesar.attack import document  # noqa: PLC0415

    if out.suffix != ".md":
        raise ConfigError(f"{out} is no Markdown file; give --out NAME.md")
    console.print(f"written: [bold]{document.write_section(directories, out)}[/]")
