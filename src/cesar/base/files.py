"""Files that are whole or not there: written beside their place, made durable, and moved into it.

A process that is killed while writing leaves the old file as it was, and a draft, which the next writer removes. A draft is
locked while somebody writes it, so that of two writers none removes the other's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DISK = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM}
)


def is_about_disk(error: OSError) -> bool:
    """Whether this says that nothing can be written at the moment: full, over a quota, read-only or broken."""
    return error.errno in _DISK


@contextmanager
def replacing(path: Path, *, mode: int = 0o644) -> Iterator[Path]:
    """A path to write to, which becomes `path` at the end of the block if nothing was raised.

    Args:
        mode: the rights of the file from its first byte on; secrets are 0o600.
    """
    _sweep(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    draft.unlink(missing_ok=True)
    held = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield draft
        _sync(draft)
        draft.replace(path)
        _sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)
        os.close(held)


def _sweep(path: Path) -> None:
    """Remove drafts that nobody writes any more."""
    for draft in path.parent.glob(f".{glob.escape(path.name)}.*.new"):
        with contextlib.suppress(OSError):
            held = os.open(draft, os.O_RDONLY)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                draft.unlink()
            finally:
                os.close(held)


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
