"""Progress of runs, as bars with the latest figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from cesar.cli.output import notices, size

if TYPE_CHECKING:
    from cesar_lab.run.journal import Row
    from cesar_lab.run.simulation import RoundRecord


def run_bars() -> Progress:
    """The display that `RunBars` writes to."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TextColumn("{task.fields[sent]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=notices,
    )


class RunBars:
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
        self._progress.update(self._task, advance=1, sent=size(sent))

    def tested(self, row: Row) -> None:
        from cesar_lab.show.results import METRICS  # noqa: PLC0415

        assert self._task is not None
        name = next(name for name in METRICS if name in row)
        self._progress.update(self._task, figures=f"{name} {row[name]:.4f}")

    def finished(self, summary: dict[str, object]) -> None:
        """The bar stays as it is."""
