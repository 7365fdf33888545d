"""`cesar run` and `cesar report`: experiments from the command line, with live progress and a table."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from cesar.errors import ConfigError
from cesar.seeds import SeedTree

if TYPE_CHECKING:
    from cesar.experiment.results import MethodRow
    from cesar.experiment.run import Row
    from cesar.sim.simulation import Hire, RoundRecord

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Where datasets lie; else $CESAR_DATA, else the user's cache."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def _size(count: float) -> str:
    """Bytes in units that people read."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


class ProgressBars:
    """An observer that shows each run as a bar with its latest figures."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def started(self, title: str, seed: int, rounds: int, done: int) -> None:
        self._task = self._progress.add_task(
            f"{title}, seed {seed}", total=rounds, completed=done, figures="", sent=""
        )

    def round_done(self, record: RoundRecord, sent: float) -> None:
        assert self._task is not None
        self._progress.update(self._task, advance=1, sent=_size(sent))

    def tested(self, row: Row) -> None:
        from cesar.experiment.results import METRICS  # noqa: PLC0415

        assert self._task is not None
        name = next(name for name in METRICS if name in row)
        self._progress.update(self._task, figures=f"{name} {row[name]:.4f}")

    def finished(self, summary: dict[str, object]) -> None:
        """The bar stays as it is."""


def progress_bars() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TextColumn("{task.fields[sent]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=Console(stderr=True),
    )


class EngineName(StrEnum):
    """Where the nodes of a simulation live."""

    LOCAL = "local"
    RAY = "ray"


def _hire(
    engine: EngineName, address: str | None, workers: int | None
) -> AbstractContextManager[Hire | None]:
    if engine is EngineName.RAY:
        from cesar.sim.cluster import connect  # noqa: PLC0415

        return connect(address, workers)
    if address is not None:
        raise ConfigError("--address is that of a Ray cluster; add --engine ray")
    return nullcontext()


def run_command(
    file: Annotated[Path | None, typer.Argument(help="The experiment file (TOML).")] = None,
    out: Annotated[Path | None, typer.Option(help="Directory for the results; default runs/NAME.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the experiment of this directory.")] = None,
    override: Annotated[
        list[str] | None, typer.Option("--set", help="key.path=value; may be given several times.")
    ] = None,
    data_dir: DataDir = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Threads, or actors of Ray; default one per core.")
    ] = None,
    engine: Annotated[
        EngineName, typer.Option(help="Where the nodes live: in this process, or in actors of Ray.")
    ] = EngineName.LOCAL,
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster; without it Ray is started on this machine.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run an experiment: every method and seed of the file, with progress, a table and a report."""
    from cesar.experiment import config, loggers, run  # noqa: PLC0415  (torch takes seconds to import)

    if (file is None) == (resume is None):
        raise ConfigError("give an experiment file, or --resume with the directory of an earlier run")
    if resume is not None:
        experiment, folder = run.read(resume), resume
    else:
        assert file is not None
        experiment = config.load(file, tuple(override or ()))
        folder = out or Path("runs") / experiment.name
        if (folder / "experiment.json").exists() and run.read(folder) != experiment:
            raise ConfigError(f"{folder} holds another experiment; choose another --out, or remove it")
    with _hire(engine, address, workers) as hire, progress_bars() as progress:
        run.execute(
            experiment,
            folder,
            data_dir=data_dir,
            workers=workers,
            hire=hire,
            observers=[ProgressBars(progress), *loggers.loggers(experiment, folder)],
        )
    show_results([folder], as_json=as_json)


def demo_command(
    out: Annotated[Path, typer.Option(help="Directory for the results.")] = Path("runs/demo"),
    workers: Annotated[int | None, typer.Option(min=1, help="Threads; default one per core.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train 16 nodes on handwritten digits, averaging in eight ways; needs no download."""
    with resources.as_file(resources.files("cesar.experiment") / "demo.toml") as file:
        run_command(file, out=out, workers=workers, as_json=as_json)


def bench_training_command(
    dataset: Annotated[str, typer.Option(help="Whose samples to train on.")] = "cifar10",
    model: Annotated[str, typer.Option(help="Which model.")] = "lenet",
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes.")] = 48,
    steps: Annotated[int, typer.Option(min=1, help="SGD steps per node and round.")] = 6,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples per step.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to time; the median counts.")] = 5,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Time local training against a bare PyTorch loop over the same nodes and batches."""
    from cesar.learn import datasets, models, partition  # noqa: PLC0415
    from cesar.learn.throughput import bench_training  # noqa: PLC0415
    from cesar.learn.training import Sgd  # noqa: PLC0415

    data = datasets.load(dataset, data_dir)
    parts = partition.iid(len(data.train), nodes, SeedTree(0).generator("partition"))
    sgd = Sgd(learning_rate=0.01, batch_size=batch_size, steps=steps)
    with Console(stderr=True).status("starting") as status:
        module = models.build(model, data, seed=0)
        result = bench_training(data, module, parts, sgd, rounds=rounds, progress=status.update)
    if as_json:
        typer.echo(json.dumps(asdict(result)))
        return
    table = Table(title=f"{nodes} nodes, {model} on {dataset}", show_header=False)
    for name, value in asdict(result).items():
        table.add_row(name.replace("_", " "), f"{value:.3f}")
    Console().print(table)


def report_command(
    directories: Annotated[list[Path], typer.Argument(help="Experiment directories.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    markdown: Annotated[Path | None, typer.Option(help="Write tables in Markdown instead.")] = None,
    note: Annotated[
        list[str] | None, typer.Option(help="NAME=text beside the tables of that experiment; repeatable.")
    ] = None,
    bench: Annotated[
        list[Path] | None,
        typer.Option(help="What `cesar bench … --json` printed, for the tables; repeatable."),
    ] = None,
) -> None:
    """One self-contained HTML page with curves, costs, topology and configuration."""
    from cesar.experiment.report import write_report  # noqa: PLC0415
    from cesar.experiment.tables import write_tables  # noqa: PLC0415

    if markdown is not None:
        notes = dict(text.partition("=")[::2] for text in note or ())
        page = write_tables(directories, markdown, notes=notes, benches=bench or ())
        Console().print(f"tables: [bold]{page}[/]")
        return
    Console().print(f"report: [bold]{write_report(directories, out)}[/]")


def show_results(folders: list[Path], *, as_json: bool) -> None:
    """The comparison of all methods, and the path of the report."""
    from cesar.experiment.report import write_report  # noqa: PLC0415
    from cesar.experiment.results import summarise  # noqa: PLC0415

    rows = [row for folder in folders for row in summarise(folder)]
    page = write_report(folders, folders[0] / "report.html")
    if as_json:
        typer.echo(json.dumps({"report": str(page), "methods": [row.as_dict() for row in rows]}))
        return
    Console().print(_table(rows))
    Console().print(f"report: [bold]{page}[/]")


def _table(rows: list[MethodRow]) -> Table:
    percent = rows[0].metric == "accuracy"
    scale, digits, unit = (100, 2, " %") if percent else (1, 4, "")
    table = Table(
        title="Mean over nodes and seeds, ± standard error over seeds",
        caption="shared: of the parameters; sent: by a node in all rounds; seconds of training and protocol",
    )
    table.add_column("method", no_wrap=True)
    for heading in ("shared", f"{rows[0].metric}{unit}", "sent", "training", "protocol"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        error = "" if row.error is None else f" ± {scale * row.error:.{digits}f}"
        table.add_row(
            row.title,
            f"{row.shared:.1%}",
            f"{scale * row.value:.{digits}f}{error}",
            _size(row.bytes),
            f"{row.seconds_training:.1f}",
            f"{row.seconds_protocol:.1f}",
        )
    return table
