"""Running a reproduction: OUT/NAME/PART are experiment directories, OUT/NAME/bytes.csv are counts.

Reproductions overlap: s = 1 of one figure is a line of another. What a sibling under OUT has finished with the same
settings and seed is copied, because it would come out the same.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from cesar.base import files
from cesar.base.errors import ConfigError
from cesar_lab.paper.catalogue import Exhibit, Scale
from cesar_lab.paper.counting import Counting, count
from cesar_lab.paper.measured import KINDS
from cesar_lab.run import execute as run
from cesar_lab.run.config import Experiment, MethodTable
from cesar_lab.run.execute import Observer

MANIFEST = "reproduce.json"


def reproduce(
    of: Exhibit,
    scale: Scale,
    out: Path,
    *,
    seeds: int | None = None,
    data_dir: Path | None = None,
    workers: int | None = None,
    observers: Sequence[Observer] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> Path:
    """Run all that a reproduction has and that is not there yet; its directory.

    Raises:
        ConfigError: the directory holds results of other settings.
    """
    folder = out / of.name
    _claim(folder, of, scale, seeds)
    counting = Counting.of(of, scale)
    if counting is not None:
        count(counting, range(1, (seeds or 1) + 1), folder, data_dir=data_dir, progress=progress)
    parts = of.parts(scale, seeds)
    for part, experiment in parts.items():
        place = folder / part
        if (place / "experiment.json").exists() and run.read(place) != experiment:
            raise ConfigError(f"{place} holds another experiment; choose another --out, or remove it")
        adopt(experiment, place, out)
        run.execute(experiment, place, data_dir=data_dir, workers=workers, observers=observers)
    if of.measure is not None:
        kind = KINDS[of.measure["kind"]]
        for place in [folder / part for part in parts] if kind.of_parts else [folder]:
            if not (place / kind.file).exists():
                _write_json(place / kind.file, kind.measure(of, place, scale, data_dir, progress))
    return folder


def _write_json(path: Path, value: object) -> None:
    files.write(path, json.dumps(value, indent=2) + "\n")


def _claim(folder: Path, of: Exhibit, scale: Scale, seeds: int | None) -> None:
    """Note what this directory is for; refuse to mix scales."""
    manifest = {"name": of.name, "scale": scale, "seeds": seeds}
    path = folder / MANIFEST
    if path.exists() and (found := read_manifest(folder)) != manifest:
        raise ConfigError(
            f"{folder} holds {found['name']} at scale {found['scale']} with {found['seeds'] or 'the usual'} seeds; "
            "choose another --out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(path, manifest)


def read_manifest(folder: Path) -> dict[str, object]:
    """What `reproduce` noted."""
    try:
        return dict(json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise ConfigError(
            f"{folder} holds no {MANIFEST}; give a directory that cesar reproduce has made"
        ) from None


def adopt(experiment: Experiment, place: Path, root: Path) -> int:
    """Copy the finished runs that a sibling has with the same settings and seed; how many."""
    copied = 0
    for path in sorted(root.glob("*/*/experiment.json")):
        if path.parent == place or not _alike(experiment, sibling := run.read(path.parent)):
            continue
        for method in experiment.method:
            twin = _twin(method, experiment, sibling)
            if twin is None:
                continue
            for seed in experiment.seeds:
                source = path.parent / twin.folder / f"seed-{seed}"
                target = place / method.folder / f"seed-{seed}"
                if (source / "summary.json").exists() and not target.exists():
                    shutil.copytree(source, target)
                    _entitle(target / "summary.json", method.title)
                    copied += 1
    return copied


def _entitle(summary: Path, title: str) -> None:
    """Give a copied run the name that it has here."""
    found = json.loads(summary.read_text(encoding="utf-8"))
    if found["title"] != title:
        _write_json(summary, found | {"title": title})


def _alike(one: Experiment, other: Experiment) -> bool:
    """Whether all but names, methods and seeds agree."""
    free = {"name", "seeds", "method", "match_share"}
    return one.model_dump(exclude=free) == other.model_dump(exclude=free)


def _twin(method: MethodTable, one: Experiment, other: Experiment) -> MethodTable | None:
    """The other's method with the same settings, whatever it is called; if it takes CESAR's share, from the same runs."""

    def settings(section: MethodTable) -> dict[str, object]:
        return section.model_dump(exclude={"label"})

    def models(experiment: Experiment) -> list[dict[str, object]]:
        return [
            settings(m) for m in experiment.method if m.name == "cesar" and m.sparsifier == method.sparsifier
        ]

    found = next((m for m in other.method if settings(m) == settings(method)), None)
    if method.name != "dpsgd" or method.sparsifier is None or method.share or method.alpha:
        return found
    return found if one.seeds == other.seeds and models(one) == models(other) else None
