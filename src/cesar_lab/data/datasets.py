"""Datasets: finding them on disk in their official layouts, and reading them into memory.

A dataset has parts (questions and a tokenizer, say), and a part is known by the files that it needs.
Each part is looked for in three places, in this order: the folder given by the caller, `$CESAR_DATA`, and
the user's cache. Nothing is ever downloaded by accident: a missing part is an error that names the command
that fetches it. Reading happens in one module per dataset, imported when it is asked for, so that the
command line can list what there is without torch.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import itertools
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cesar.base.errors import ConfigError, DataError

if TYPE_CHECKING:  # The loaders need torch; the catalogue does not.
    from cesar_lab.data.samples import Dataset

ENVIRONMENT = "CESAR_DATA"
"""The environment variable that names the folder with the datasets."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to arrange the files of a part: in any of these folders lie all of these files."""

    folders: tuple[str, ...]
    needs: tuple[str, ...]

    def match(self, root: Path) -> Path | None:
        """The first of the folders below `root` that holds everything."""
        for folder in self.folders:
            if all((root / folder / name).exists() for name in self.needs):
                return root / folder
        return None


@dataclass(frozen=True, slots=True)
class Part:
    """Something that is found, and fetched, as a whole."""

    name: str
    layouts: tuple[Layout, ...]

    def search(self, roots: Sequence[Path]) -> Path | None:
        """Where it is: the first root that has it."""
        for root, layout in itertools.product(roots, self.layouts):
            if folder := layout.match(root):
                return folder
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is known about a dataset without reading it.

    Attributes:
        task: value of the `Task` that its samples are for.
        sizes: training and test samples of the complete official set; None where the person who prepares it decides.
    """

    name: str
    title: str
    task: str
    sizes: tuple[int, int] | None
    licence: str
    parts: tuple[Part, ...] = ()


SPLIT_FILE = "XSum-TRAINING-DEV-TEST-SPLIT-90-5-5.json"
GPT2 = Part("gpt2", (Layout(("gpt2", "qasc/gpt2", "."), ("vocab.json", "merges.txt")),))
T5 = Part("t5", (Layout(("t5", "t5-small", "xsum/t5", "."), ("spiece.model",)),))

CATALOGUE = {
    entry.name: entry
    for entry in (
        Entry(
            name="digits",
            title="8x8 handwritten digits",
            task="classification",
            sizes=(1438, 359),
            licence="CC BY 4.0 (UCI); comes with scikit-learn",
        ),
        Entry(
            name="cifar10",
            title="CIFAR-10",
            task="classification",
            sizes=(50_000, 10_000),
            licence="none stated; research, cite Krizhevsky 2009",
            parts=(
                Part(
                    "cifar10",
                    (
                        Layout(
                            ("cifar-10-batches-py", "cifar10/cifar-10-batches-py", "cifar10", "."),
                            ("data_batch_1", "test_batch"),
                        ),
                    ),
                ),
            ),
        ),
        Entry(
            name="celeba",
            title="CelebA, smiling or not",
            task="classification",
            sizes=None,
            licence="non-commercial research; no part may be passed on",
            parts=(
                Part(
                    "celeba",
                    (
                        Layout(
                            ("celeba/data", "celeba", "data", "."),
                            ("train", "test", "raw/img_align_celeba"),
                        ),
                    ),
                ),
            ),
        ),
        Entry(
            name="movielens",
            title="MovieLens ml-latest-small",
            task="rating",
            sizes=(70_624, 30_212),
            licence="GroupLens terms: research, no commercial use",
            parts=(
                Part(
                    "movielens",
                    (
                        Layout(
                            ("ml-latest-small", "movielens/ml-latest-small", "movielens", "."),
                            ("ratings.csv",),
                        ),
                    ),
                ),
            ),
        ),
        Entry(
            name="qasc",
            title="QASC, questions with eight choices",
            task="choice",
            sizes=(8134, 926),
            licence="CC BY 4.0",
            parts=(
                Part(
                    "qasc",
                    (
                        Layout(
                            ("qasc", "QASC_Dataset", "qasc/QASC_Dataset", "."), ("train.jsonl", "dev.jsonl")
                        ),
                    ),
                ),
                GPT2,
            ),
        ),
        Entry(
            name="xsum",
            title="XSum, one-sentence summaries",
            task="summary",
            sizes=(204_045, 11_334),
            licence="BBC copyright; research, do not republish",
            parts=(
                Part(
                    "xsum",
                    (
                        Layout(("xsum", "."), ("train.jsonl", "test.jsonl")),
                        Layout(("xsum", "XSum-Dataset", "."), ("bbc-summary-data", SPLIT_FILE)),
                    ),
                ),
                T5,
            ),
        ),
    )
}


def names() -> tuple[str, ...]:
    """The datasets that `load` knows."""
    return tuple(CATALOGUE)


def describe(name: str) -> Entry:
    """The catalogue entry; a wrong name is an error that suggests the right one."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    raise ConfigError(f"unknown dataset {name!r}{_suggest(name, names())}; there are {', '.join(names())}")


def roots(data_dir: str | os.PathLike[str] | None = None) -> tuple[Path, ...]:
    """The folders that are searched, in this order; a download goes to the first."""
    cache = require("platformdirs", "lab").user_cache_dir("cesar", appauthor=False)
    given = (data_dir, os.environ.get(ENVIRONMENT), cache)
    return tuple(Path(folder).expanduser() for folder in given if folder)


def command(name: str, data_dir: str | os.PathLike[str] | None = None) -> str:
    """The command that fetches a dataset."""
    where = f" --data-dir {shlex.quote(os.fspath(data_dir))}" if data_dir else ""
    return f"cesar data get {name}{where}"


def find(name: str, data_dir: str | os.PathLike[str] | None = None) -> tuple[Path, ...]:
    """The folder of each part of a dataset.

    Raises:
        DataError: a part is missing; the message says where it was looked for and how to fetch it.
    """
    searched = roots(data_dir)
    found = []
    for part in describe(name).parts:
        folder = part.search(searched)
        if folder is None:
            what = " or ".join(f"{layout.folders[0]}/ with {_all(layout.needs)}" for layout in part.layouts)
            raise DataError(
                f"dataset {name}: {what} is in none of these folders: {', '.join(map(str, searched))}. "
                f"Fetch it with `{command(name, data_dir)}`, or let --data-dir or ${ENVIRONMENT} name the "
                "folder that has it"
            )
        found.append(folder)
    return tuple(found)


def load(name: str, data_dir: str | os.PathLike[str] | None = None, **options: Any) -> Dataset:
    """Read a dataset into memory.

    Args:
        name: one of `names()`.
        data_dir: where to look first; then come `$CESAR_DATA` and the user's cache.
        options: for every dataset `train_limit` and `test_limit`, to take only the first samples; the
            others are those of the `load` function in the dataset's own module.

    Raises:
        ConfigError: there is no such dataset or option, or a package is not installed.
        DataError: the files are missing, or not what they should be.
    """
    describe(name)
    loader = require(f"cesar_lab.data.{name}", "lab")
    _check(name, options, inspect.signature(loader.load).parameters)
    dataset: Dataset = loader.load(*find(name, data_dir), **options)
    return dataset


def _check(name: str, options: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> None:
    known = [key for key, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]
    for key, value in options.items():
        if key not in known:
            raise ConfigError(
                f"dataset {name} has no option {key!r}{_suggest(key, known)}; it has {', '.join(known)}"
            )
        if key.endswith("_limit") and value is not None:
            at_least(1, key, value)


def at_least(least: int, key: str, value: object) -> None:
    """Refuse an option that should be a whole number of at least `least` and is not."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{key} must be a whole number of at least {least}, not {value!r}")


def require(module: str, extra: str) -> ModuleType:
    """Import what not every installation has; `extra` is the install extra that brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        raise ConfigError(
            f"this needs the package {missing}, which is not installed; in a copy of cesar's repository: "
            f"pip install '.[{extra}]'"
        ) from error


def json_lines(path: Path, limit: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The first objects of a file with one JSON object per line, each with its place for messages."""
    with path.open(encoding="utf-8") as file:
        filled = ((number, line) for number, line in enumerate(file, 1) if line.strip())
        for number, line in itertools.islice(filled, limit):
            where = f"{path}, line {number}"
            try:
                record = json.loads(line)
            except ValueError as error:
                raise DataError(f"{where}: not JSON ({error})") from error
            if not isinstance(record, dict):
                raise DataError(f"{where}: not a JSON object")
            yield where, record


def sizes(name: str, folders: Sequence[Path]) -> tuple[int, int] | None:
    """Training and test samples that lie there: counted where a set may be a sample, else as published."""
    match name:
        case "celeba":
            return _leaf_samples(folders[0] / "train"), _leaf_samples(folders[0] / "test")
        case "qasc":
            return _lines(folders[0] / "train.jsonl"), _lines(folders[0] / "dev.jsonl")
        case "xsum" if (folders[0] / "train.jsonl").exists():
            return _lines(folders[0] / "train.jsonl"), _lines(folders[0] / "test.jsonl")
        case _:
            return describe(name).sizes


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for line in file if line.strip())


def _leaf_samples(folder: Path) -> int:
    return sum(sum(json.loads(path.read_bytes())["num_samples"]) for path in folder.glob("*.json"))


def _all(words: Sequence[str]) -> str:
    return " and ".join(words)


def _suggest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
