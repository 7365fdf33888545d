"""`cesar run`: an experiment from its file, with live progress and a table."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cesar.base.errors import ConfigError
from cesar.cli.options import AsJson, DataDir
from cesar_lab.cli.bars import RunBars, run_bars
from cesar_lab.cli.report import show_results

if TYPE_CHECKING:
    from cesar_lab.run.simulation import BackendFactory


class EngineName(StrEnum):
    """Where the nodes of a simulation live."""

    LOCAL = "local"
    RAY = "ray"


def _backend(
    engine: EngineName, address: str | None, workers: int | None
) -> AbstractContextManager[BackendFactory | None]:
    if engine is EngineName.RAY:
        from cesar_lab.run.cluster import connect  # noqa: PLC0415

        return connect(address, workers)
    if address is not None:
        raise ConfigError("--address is that of a Ray cluster; add --engine ray")
    return nullcontext()


def command(
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
    trust_code: Annotated[
        bool,
        typer.Option(
            "--trust-code",
            help="Import the model that the experiment names as package.module:factory; that runs its code.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run an experiment: every method and seed of the file, with progress, a table and a report."""
    if (file is None) == (resume is None):
        raise ConfigError("give an experiment file, or --resume with the directory of an earlier run")
    with _backend(engine, address, workers) as backend:
        folder = perform(
            file,
            resume or out,
            override=tuple(override or ()),
            data_dir=data_dir,
            workers=workers,
            backend=backend,
            trust_code=trust_code,
        )
    show_results([folder], as_json=as_json)


def perform(
    file: Path | None,
    folder: Path | None,
    *,
    override: tuple[str, ...] = (),
    data_dir: Path | None = None,
    workers: int | None = None,
    backend: BackendFactory | None = None,
    trust_code: bool = False,
) -> Path:
    """Run the experiment of a file, or without one go on with that of the folder; where its results lie."""
    from cesar_lab.run import config, execute, loggers  # noqa: PLC0415  (torch takes seconds to import)

    if file is None:
        assert folder is not None
        experiment = execute.read(folder)
    else:
        experiment = config.load(file, override)
        folder = folder or Path("runs") / experiment.name
        if (folder / "experiment.json").exists() and execute.read(folder) != experiment:
            raise ConfigError(f"{folder} holds another experiment; choose another --out, or remove it")
    with run_bars() as progress:
        execute.execute(
            experiment,
            folder,
            data_dir=data_dir,
            workers=workers,
            backend=backend,
            trust_code=trust_code,
            observers=[RunBars(progress), *loggers.loggers(experiment, folder)],
        )
    return folder
