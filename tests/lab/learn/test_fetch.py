"""Downloads, against a server on this machine: resumed, verified, unpacked with care."""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import re
import stat
import tarfile
import threading
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from cesar.base.errors import ConfigError, DataError
from cesar_lab.data import datasets, fetch
from cesar_lab.data.fetch import Download, Manual
from support.commands import call, read


@dataclass
class Site:
    """What the server has, how it misbehaves, and what it was asked for."""

    files: dict[str, bytes] = field(default_factory=dict)
    cut: int | None = None
    ranges: bool = True
    shifted: bool = False
    status: int | None = None
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""

    def offer(self, path: str, content: bytes, target: str, **changes) -> Download:
        self.files[f"/{path}"] = content
        facts = {
            "url": f"{self.url}/{path}",
            "size": len(content),
            "algorithm": "sha256",
            "digest": hashlib.sha256(content).hexdigest(),
            "target": target,
        }
        return Download(**(facts | changes))


class Handler(BaseHTTPRequestHandler):
    timeout = 10

    def do_GET(self):
        site = self.server.site
        wanted = self.headers.get("Range")
        path = urlsplit(self.path).path
        site.asked.append((path, wanted))
        if site.status or path not in site.files:
            self.send_error(site.status or 404)
            return
        content, begin = site.files[path], 0
        if wanted and site.ranges:
            begin = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
            if begin >= len(content):
                self.send_error(416)
                return
            self.send_response(206)
            first = begin + site.shifted
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        self.wfile.write(content[begin:][: site.cut])

    def log_message(self, *args):
        pass


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.site = Site(url=f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server.site
        server.shutdown()
        thread.join(10)


@pytest.fixture(autouse=True)
def only_here(monkeypatch, tmp_path):
    """No test looks into this machine's own folders."""
    monkeypatch.delenv(datasets.ENVIRONMENT, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


NOISE = hashlib.shake_256(b"noise").digest(20_000)


def tarred(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zipped(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


def ratings(site: Site, content: bytes | None = None, **changes) -> dict[str, tuple[Download, ...]]:
    """A small MovieLens."""
    content = content or zipped(("ml-latest-small/ratings.csv", NOISE))
    return {"movielens": (site.offer("data/ratings.zip", content, "ml-latest-small", **changes),)}


def questions(site: Site) -> dict[str, tuple[Download, ...]]:
    """A small QASC with a small tokenizer: an archive and two files."""
    archive = tarred(("QASC_Dataset/train.jsonl", NOISE), ("QASC_Dataset/dev.jsonl", b"{}"))
    return {
        "qasc": (site.offer("qasc.tar.gz", archive, "QASC_Dataset"),),
        "gpt2": (
            site.offer("vocab.json", b"{1}", "gpt2/vocab.json"),
            site.offer("merges.txt", b"merges", "gpt2/merges.txt"),
        ),
    }


def left(folder) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_everything_is_fetched_once(site, tmp_path):
    sources = questions(site)
    seen = []
    folders = fetch.fetch("qasc", tmp_path, lambda done, total: seen.append((done, total)), sources)
    assert folders == (tmp_path / "QASC_Dataset", tmp_path / "gpt2")
    assert (folders[0] / "train.jsonl").read_bytes() == NOISE
    assert left(tmp_path) == [
        "QASC_Dataset/dev.jsonl",
        "QASC_Dataset/train.jsonl",
        "gpt2/merges.txt",
        "gpt2/vocab.json",
    ]
    total = sum(len(content) for content in site.files.values())
    assert seen == sorted(seen)
    assert seen[-1] == (total, total)
    assert len(site.asked) == 3
    assert fetch.fetch("qasc", tmp_path, sources=sources) == folders
    assert len(site.asked) == 3


def test_only_the_missing_part_is_fetched(site, tmp_path):
    sources = questions(site)
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "vocab.json").write_bytes(b"{1}")
    fetch.fetch("qasc", tmp_path, sources=sources)
    assert [path for path, _ in site.asked] == ["/qasc.tar.gz", "/merges.txt"]


def test_the_first_folder_of_the_search_order_receives(site, tmp_path, monkeypatch):
    monkeypatch.setenv(datasets.ENVIRONMENT, str(tmp_path / "mine"))
    assert fetch.fetch("movielens", sources=ratings(site)) == (tmp_path / "mine" / "ml-latest-small",)


def test_an_interrupted_transfer_goes_on(site, tmp_path):
    sources = ratings(site)
    size = len(site.files["/data/ratings.zip"])
    site.cut = 5000
    with pytest.raises(DataError, match=rf"got 15,000 of {size:,} bytes .* same command again"):
        fetch.fetch("movielens", tmp_path, sources=sources)
    assert left(tmp_path) == ["ratings.zip.part"]
    site.cut = None
    seen = []
    fetch.fetch("movielens", tmp_path, lambda done, total: seen.append(done), sources)
    assert [wanted for _, wanted in site.asked] == [None, "bytes=5000-", "bytes=10000-", "bytes=15000-"]
    assert seen[0] > 15_000
    assert left(tmp_path) == ["ml-latest-small/ratings.csv"]
    assert (tmp_path / "ml-latest-small" / "ratings.csv").read_bytes() == NOISE


def test_a_complete_part_needs_no_connection(site, tmp_path):
    sources = ratings(site)
    (tmp_path / "ratings.zip.part").write_bytes(site.files["/data/ratings.zip"])
    fetch.fetch("movielens", tmp_path, sources=sources)
    assert not site.asked
    assert left(tmp_path) == ["ml-latest-small/ratings.csv"]


def test_a_server_without_ranges_starts_again(site, tmp_path):
    sources = ratings(site)
    site.ranges = False
    (tmp_path / "ratings.zip.part").write_bytes(b"old")
    fetch.fetch("movielens", tmp_path, sources=sources)
    assert site.asked == [("/data/ratings.zip", "bytes=3-")]
    assert (tmp_path / "ml-latest-small" / "ratings.csv").read_bytes() == NOISE


def test_a_wrong_range_is_refused(site, tmp_path):
    sources = ratings(site)
    site.shifted = True
    (tmp_path / "ratings.zip.part").write_bytes(b"old")
    with pytest.raises(DataError, match="another range"):
        fetch.fetch("movielens", tmp_path, sources=sources)
    assert left(tmp_path) == []


def test_a_wrong_checksum_is_refused_and_deleted(site, tmp_path):
    sources = ratings(site, digest="0" * 64)
    with pytest.raises(DataError, match="refused and deleted: its sha256"):
        fetch.fetch("movielens", tmp_path, sources=sources)
    assert left(tmp_path) == []


def test_a_damaged_beginning_is_found_after_resuming(site, tmp_path):
    sources = ratings(site)
    (tmp_path / "ratings.zip.part").write_bytes(b"old")
    with pytest.raises(DataError, match="refused and deleted"):
        fetch.fetch("movielens", tmp_path, sources=sources)
    fetch.fetch("movielens", tmp_path, sources=sources)


@pytest.mark.parametrize("error", [-1, 1])
def test_another_size_is_refused_before_the_transfer(site, tmp_path, error):
    content = zipped(("ml-latest-small/ratings.csv", NOISE))
    sources = ratings(site, content, size=len(content) + error)
    with pytest.raises(DataError, match="not the file that cesar knows"):
        fetch.fetch("movielens", tmp_path, sources=sources)
    assert left(tmp_path) == []


@pytest.mark.parametrize("status, attempts", [(404, 1), (403, 1), (416, 1), (503, fetch.ATTEMPTS)])
def test_a_server_that_says_no(site, tmp_path, status, attempts):
    sources = ratings(site)
    site.status = status
    (tmp_path / "ratings.zip.part").write_bytes(b"old")
    with pytest.raises(DataError, match=str(status) if status != 416 else "start anew"):
        fetch.fetch("movielens", tmp_path, sources=sources)
    assert len(site.asked) == attempts
    assert (tmp_path / "ratings.zip.part").exists() is (status != 416)


def test_no_connection(tmp_path, site):
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        address = f"http://127.0.0.1:{server.server_port}/data/ratings.zip"
    with pytest.raises(DataError, match=r"got 0 of .* \(.*refused"):
        fetch.fetch("movielens", tmp_path, sources=ratings(site, url=address))


def test_a_folder_that_cannot_be_written(site, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="choose another folder with --data-dir"):
        fetch.fetch("movielens", tmp_path / "file", sources=ratings(site))


def test_what_is_there_is_never_overwritten(site, tmp_path):
    (tmp_path / "ml-latest-small").mkdir()
    (tmp_path / "ml-latest-small" / "notes.txt").write_bytes(b"mine")
    with pytest.raises(DataError, match="move it away"):
        fetch.fetch("movielens", tmp_path, sources=ratings(site))
    assert left(tmp_path) == ["ml-latest-small/notes.txt"]
    assert not site.asked


def special(kind: bytes, target: str) -> bytes:
    """A tar archive with a member that is no file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo("QASC_Dataset/train.jsonl")
        info.type, info.linkname = kind, target
        tar.addfile(info)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "archive",
    [
        tarred(("../evil", b"x")),
        tarred(("QASC_Dataset/../../evil", b"x")),
        special(tarfile.SYMTYPE, "../../evil"),
        special(tarfile.SYMTYPE, "dev.jsonl"),
        special(tarfile.LNKTYPE, "../evil"),
        special(tarfile.FIFOTYPE, ""),
        special(tarfile.CHRTYPE, ""),
        b"not an archive",
        tarred(("QASC_Dataset/train.jsonl", NOISE))[:-500],
        tarred(("Elsewhere/train.jsonl", NOISE)),
        tarred(("QASC_Dataset/other.jsonl", NOISE)),
    ],
    ids=itertools.count(),  # archives hold the time, and all workers must give a case the same name
)
def test_a_bad_tar_archive_is_refused(site, tmp_path, archive):
    root = tmp_path / "data"
    sources = {"qasc": (site.offer("qasc.tar.gz", archive, "QASC_Dataset"),), "gpt2": ()}
    with pytest.raises(DataError, match=r"refused to unpack|archive has changed"):
        fetch.fetch("qasc", root, sources=sources)
    assert left(tmp_path) in (["data/qasc.tar.gz.part"], ["data/QASC_Dataset/other.jsonl"])


def test_absolute_names_stay_inside(site, tmp_path):
    """Python's filter strips the leading slash, so the folder that we expect is not there."""
    archive = tarred((f"{tmp_path}/evil", b"x"))
    sources = {"qasc": (site.offer("qasc.tar.gz", archive, "QASC_Dataset"),), "gpt2": ()}
    with pytest.raises(DataError):
        fetch.fetch("qasc", tmp_path / "data", sources=sources)
    assert not (tmp_path / "evil").exists()


def zip_link() -> bytes:
    info = zipfile.ZipInfo("ml-latest-small/ratings.csv")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(info, "../../evil")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "archive",
    [
        zipped(("../evil", b"x")),
        zipped(("ml-latest-small/../../evil", b"x")),
        zipped(("/tmp/evil", b"x")),
        zipped(("..\\evil", b"x")),
        zipped(("C:/evil", b"x")),
        zip_link(),
        b"not an archive",
        zipped(("elsewhere/ratings.csv", b"x")),
    ],
    ids=itertools.count(),
)
def test_a_bad_zip_archive_is_refused(site, tmp_path, archive):
    with pytest.raises(DataError, match=r"refused to unpack|archive has changed"):
        fetch.fetch("movielens", tmp_path / "data", sources=ratings(site, archive))
    assert left(tmp_path) == ["data/ratings.zip.part"]


def test_terms_that_a_person_must_accept(site, tmp_path):
    with pytest.raises(DataError) as refusal:
        fetch.fetch("celeba", tmp_path)
    assert "preprocess.sh -s niid" in str(refusal.value)
    assert f"{tmp_path}/celeba/data has train, test and raw" in str(refusal.value)
    sources = {
        "t5": (site.offer("spiece.model", b"pieces", "t5/spiece.model"),),
        "xsum": fetch.SOURCES["xsum"],
    }
    with pytest.raises(DataError, match="BBC's copyright") as refusal:
        fetch.fetch("xsum", tmp_path, sources=sources)
    assert '{"document": ..., "summary": ..., "id": ...}' in str(refusal.value)
    assert left(tmp_path) == ["t5/spiece.model"]


def test_digits_need_nothing(tmp_path):
    assert fetch.fetch("digits", tmp_path) == ()
    with pytest.raises(ConfigError, match="did you mean 'digits'"):
        fetch.fetch("digit", tmp_path)


def test_the_table_is_complete():
    parts = {part.name for entry in datasets.CATALOGUE.values() for part in entry.parts}
    assert parts == set(fetch.SOURCES)
    for source in fetch.SOURCES.values():
        for item in () if isinstance(source, Manual) else source:
            assert item.url.startswith("https://") or item.algorithm == "sha256"
            assert len(item.digest) == 2 * hashlib.new(item.algorithm).digest_size
            assert item.size > 0


def test_cli_gets(site, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "fetch", functools.partial(fetch.fetch, sources=ratings(site)))
    shown = call("data", "get", "movielens", "--data-dir", tmp_path)
    assert f"is in {tmp_path}/ml-latest-small" in shown
    assert "GroupLens" in shown
    assert read("data", "get", "movielens", "--data-dir", tmp_path) == {
        "name": "movielens",
        "folders": [f"{tmp_path}/ml-latest-small"],
    }
