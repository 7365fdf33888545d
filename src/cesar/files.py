"""Files that are whole or not there: written beside their place, made durable, and moved into it.

Whoever is killed while writing leaves the old file as it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path, *, mode: int = 0o644) -> Iterator[Path]:
    """A path to write to, which becomes `path` at the end of the block if nothing was raised.

    Args:
        mode: the rights of the file from its first byte on; secrets are 0o600.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    draft.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    try:
        yield draft
        _sync(draft)
        draft.replace(path)
        _sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def write(path: Path, content: str | bytes, *, mode: int = 0o644) -> None:
    """Replace a file's content; text is UTF-8."""
    with replacing(path, mode=mode) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


def _sync(path: Path) -> None:
    """Have the system write a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
