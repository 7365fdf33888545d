"""Downloads from the official addresses: resumed after an interruption, verified, unpacked with care.

A file grows as `NAME.part` and gets its name only after its checksum was right, so whatever has its name is
whole. An archive is unpacked into a folder of its own and moved into place in one step; nothing that lies
there already is ever overwritten. CelebA and XSum may not be fetched by a program: their terms want a
person's consent, so the error is a list of what that person should do.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import stat
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cesar.base.errors import ConfigError, DataError
from cesar_lab.data.datasets import Part, command, describe, roots

Progress = Callable[[int, int], None]
"""Told the bytes done and the bytes in all, now and then."""

ATTEMPTS = 3
CHUNK = 1 << 18
TIMEOUT = 30.0
"""Seconds without an answer after which a connection counts as lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """One file at an official address.

    Attributes:
        size: its bytes.
        algorithm, digest: its checksum, as published.
        target: the path that it becomes below the data folder: a file, or the folder inside the archive.
    """

    url: str
    size: int
    algorithm: str
    digest: str
    target: str

    @property
    def is_archive(self) -> bool:
        """Whether it must be unpacked."""
        return self.url.endswith((".tar.gz", ".zip"))

    @property
    def part(self) -> str:
        """Where it grows, below the data folder."""
        name = PurePosixPath(self.url).name if self.is_archive else self.target
        return f"{name}.part"


@dataclass(frozen=True, slots=True)
class Manual:
    """What a person must do, because the terms leave it to a person; `{folder}` is the data folder."""

    steps: str


Source = tuple[Download, ...] | Manual

SOURCES: Mapping[str, Source] = {
    "cifar10": (
        Download(
            url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            size=170_498_071,
            algorithm="md5",
            digest="c58f30108f718f92721af3b95e74349a",
            target="cifar-10-batches-py",
        ),
    ),
    "movielens": (
        Download(
            url="https://files.grouplens.org/datasets/movielens/ml-latest-small.zip",
            size=978_202,
            algorithm="sha256",
            digest="696d65a3dfceac7c45750ad32df2c259311949efec81f0f144fdfb91ebc9e436",
            target="ml-latest-small",
        ),
    ),
    "qasc": (
        Download(
            url="http://data.allenai.org/downloads/qasc/qasc_dataset.tar.gz",
            size=1_616_514,
            algorithm="sha256",
            digest="a7b3f2244f768974c609fd621346c931a72715609f171cb5544fc1da2a2ad55c",
            target="QASC_Dataset",
        ),
    ),
    "gpt2": (
        Download(
            url="https://huggingface.co/openai-community/gpt2/resolve/main/vocab.json",
            size=1_042_301,
            algorithm="sha256",
            digest="196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
            target="gpt2/vocab.json",
        ),
        Download(
            url="https://huggingface.co/openai-community/gpt2/resolve/main/merges.txt",
            size=456_318,
            algorithm="sha256",
            digest="1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
            target="gpt2/merges.txt",
        ),
    ),
    "t5": (
        Download(
            url="https://huggingface.co/google-t5/t5-small/resolve/main/spiece.model",
            size=791_656,
            algorithm="sha256",
            digest="d60acb128cf7b7f2536e8f38a5b18a05535c9e14c7a355904270e15b0945ea86",
            target="t5/spiece.model",
        ),
    ),
    "celeba": Manual(
        "CelebA is for non-commercial research only, and you must agree to its terms yourself:\n"
        "  1. Read the agreement at http://mmlab.ie.cuhk.edu.hk/projects/CelebA.html and download there\n"
        "     img_align_celeba.zip, identity_CelebA.txt and list_attr_celeba.txt.\n"
        "  2. git clone https://github.com/TalwalkarLab/leaf and put into leaf/data/celeba/data/raw/ the two\n"
        "     text files and the unpacked folder img_align_celeba.\n"
        "  3. In leaf/data/celeba run: ./preprocess.sh -s niid --sf 1.0 -k 5 -t sample\n"
        "  4. Move leaf/data/celeba to {folder}/celeba, so that {folder}/celeba/data has train, test and raw."
    ),
    "xsum": Manual(
        "XSum's articles are under the BBC's copyright, for research only; get them yourself:\n"
        "  1. Read https://github.com/EdinburghNLP/XSum/tree/master/XSum-Dataset and download from there\n"
        "     XSum-TRAINING-DEV-TEST-SPLIT-90-5-5.json to {folder}/xsum/.\n"
        "  2. Download XSUM-EMNLP18-Summary-Data-Original.tar.gz, which\n"
        "     https://huggingface.co/datasets/EdinburghNLP/xsum keeps in its folder data, and unpack it in\n"
        "     {folder}/xsum/, so that {folder}/xsum/bbc-summary-data has the articles.\n"
        "  Instead of both, {folder}/xsum/ may hold train.jsonl and test.jsonl with one object per line:\n"
        '     {{"document": ..., "summary": ..., "id": ...}}'
    ),
}
"""Where each part of a dataset comes from. AllenAI's address has no TLS; the SHA-256 makes up for it."""


def fetch(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    sources: Mapping[str, Source] = SOURCES,
) -> tuple[Path, ...]:
    """Bring a dataset into `data_dir`, else `$CESAR_DATA`, else the user's cache; what is there stays.

    Returns:
        The folder of each part.

    Raises:
        DataError: the download failed, was not the published file, or is left to a person; the message says
            what to do. After an interruption the next call goes on where this one stopped.
    """
    root = roots(data_dir)[0]
    parts = describe(name).parts
    missing = [sources[part.name] for part in parts if part.search([root]) is None]
    downloads = [item for source in missing if not isinstance(source, Manual) for item in source]
    try:
        _fetch_all(downloads, root, progress or (lambda done, total: None))
    except OSError as error:
        raise DataError(f"cannot write to {root}: {error}; choose another folder with --data-dir") from error
    for source in missing:
        if isinstance(source, Manual):
            again = command(name, data_dir)
            raise DataError(f"{source.steps.format(folder=root)}\nThen `{again}` finds it.")
    return tuple(_found(part, root) for part in parts)


def _found(part: Part, root: Path) -> Path:
    folder = part.search([root])
    if folder is None:
        raise DataError(f"{part.name} was fetched, but its files are not in {root}: the archive has changed")
    return folder


def _fetch_all(downloads: list[Download], root: Path, progress: Progress) -> None:
    total = sum(item.size for item in downloads)
    before = 0
    for item in downloads:
        base = before
        _fetch_one(item, root, lambda done, base=base: progress(base + done, total))  # type: ignore[misc]
        before += item.size


def _fetch_one(item: Download, root: Path, report: Callable[[int], None]) -> None:
    """Download, verify and put into place."""
    target, part = root / item.target, root / item.part
    if target.exists():
        if not item.is_archive and _digest(target, item.algorithm) == item.digest:
            report(item.size)
            return
        raise DataError(f"{target} exists but is not complete; move it away and try again")
    part.parent.mkdir(parents=True, exist_ok=True)
    _obtain(item, part, report)
    _verify(item, part)
    if item.is_archive:
        _unpack(item, part, root)
        part.unlink()
    else:
        part.replace(target)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _obtain(item: Download, part: Path, report: Callable[[int], None]) -> None:
    """Make `part` as long as the file; a connection that breaks is tried again from where it broke."""
    trouble: Exception | str = "the connection was closed"
    for _ in range(ATTEMPTS):
        if _size(part) >= item.size:
            break
        try:
            _transfer(item, part, report)
        except urllib.error.HTTPError as error:
            trouble = error
            error.close()
            if error.code < 500:
                _refused(item, part, error)
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            trouble = error
    if _size(part) < item.size:
        raise DataError(
            f"{item.url}: got {_size(part):,} of {item.size:,} bytes ({trouble}); "
            "give the same command again to go on from there"
        )
    report(item.size)


def _refused(item: Download, part: Path, error: urllib.error.HTTPError) -> None:
    """Say what a server's refusal means; asking again would not help."""
    if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
        part.unlink()
        raise DataError(
            f"{item.url}: the server cannot go on with this file; give the command again to start anew"
        )
    raise DataError(f"{item.url}: the server answers {error.code} {error.reason}; has the address moved?")


def _transfer(item: Download, part: Path, report: Callable[[int], None]) -> None:
    """One connection: append what is missing, or begin again if the server cannot continue."""
    have = _size(part)
    headers = {"User-Agent": "cesar"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(item.url, headers=headers)  # noqa: S310 (addresses come from the table)
    with urllib.request.build_opener().open(request, timeout=TIMEOUT) as answer:
        resumed = answer.status == http.client.PARTIAL_CONTENT
        if not resumed:
            have = 0
        _check_length(item, have, answer.headers.get("Content-Length"))
        if resumed and not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            part.unlink()
            raise DataError(f"{item.url}: the server sent another range than asked for; try again")
        with part.open("ab" if resumed else "wb") as file:
            while have < item.size and (chunk := _receive(answer, min(CHUNK, item.size - have))):
                file.write(chunk)
                have += len(chunk)
                report(have)


def _receive(answer: http.client.HTTPResponse, count: int) -> bytes:
    """Some bytes of the file; whatever breaks while reading is the connection's fault, not the disk's."""
    try:
        return answer.read(count)
    except OSError as error:
        raise ConnectionError(str(error)) from error


def _check_length(item: Download, have: int, length: str | None) -> None:
    """Refuse a file of another size before it is downloaded."""
    if length is not None and length.isdecimal() and have + int(length) != item.size:
        raise DataError(
            f"{item.url} has {have + int(length):,} bytes and not {item.size:,}: it is not the file that "
            "cesar knows. Look at the dataset's page; if there is a new version, unpack it yourself"
        )


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _verify(item: Download, part: Path) -> None:
    """Delete and refuse what does not have the published checksum."""
    digest = _digest(part, item.algorithm)
    if digest != item.digest:
        part.unlink()
        raise DataError(
            f"{item.url} was refused and deleted: its {item.algorithm} is {digest} and not {item.digest}. "
            "It was damaged on the way, or is not the published file; try again"
        )


def _unpack(item: Download, archive: Path, root: Path) -> None:
    """Move the archive's folder into place as a whole; the archive cannot write anywhere else."""
    staging = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=root))
    try:
        if item.url.endswith(".zip"):
            _unzip(archive, staging)
        else:
            _untar(archive, staging)
        if not (staging / item.target).is_dir():
            raise DataError(f"{item.url} holds no folder {item.target}: the archive has changed")
        (staging / item.target).rename(root / item.target)
    finally:
        shutil.rmtree(staging)


def _untar(archive: Path, folder: Path) -> None:
    if not hasattr(tarfile, "data_filter"):
        raise ConfigError("this Python cannot unpack archives safely; use Python 3.11.4 or later")
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter=_only_files)  # noqa: S202 (the filter decides)
    except (tarfile.TarError, EOFError) as error:
        raise DataError(f"refused to unpack {archive.name}: {error}") from error


def _only_files(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """Python's own filter, and no links of any kind: datasets have none."""
    if not (member.isreg() or member.isdir()):
        raise DataError(f"refused to unpack {member.name!r}: it is neither a file nor a folder")
    return tarfile.data_filter(member, folder)


def _unzip(archive: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                _check_member(info)
            zipped.extractall(folder)  # noqa: S202 (every name was checked)
    except (zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"refused to unpack {archive.name}: {error}") from error


def _check_member(info: zipfile.ZipInfo) -> None:
    """Refuse names that lead out of the folder, and links."""
    path = PurePosixPath(info.filename)
    if path.is_absolute() or ".." in path.parts or "\\" in info.filename or ":" in info.filename:
        raise DataError(f"refused to unpack {info.filename!r}: it leads out of the folder")
    if stat.S_ISLNK(info.external_attr >> 16):
        raise DataError(f"refused to unpack {info.filename!r}: it is a link")
