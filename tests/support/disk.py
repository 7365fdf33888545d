"""A small disk that a test fills up."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """A disk of 256 KiB; only root can make one."""
    place.mkdir()
    made = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", place], check=False, capture_output=True
    )
    if not made or made.returncode:
        pytest.skip("a small disk can be mounted by root only")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@contextlib.contextmanager
def full(disk: Path) -> Iterator[None]:
    """While this lasts, not a byte more fits."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(512))
    try:
        yield
    finally:
        filler.unlink()
