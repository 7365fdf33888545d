"""Fixtures; what test modules share lies in `support` (pyproject.toml makes `tests/` importable)."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import networkx as nx
import pytest
from hypothesis import settings

import cesar
from support.bare import Blocker

LETTERS = "ABCDEFGH"
SECAGG = 'name = "secagg"'
"""Shares everything, so that an average is the same whatever the masks were."""


def pytest_addoption(parser):
    parser.addoption("--bare", action="store_true", help="run without what only the laboratory may import")


def pytest_configure(config):
    """With --bare, a test that needs the laboratory, or one of its libraries, fails at the import."""
    if config.getoption("--bare"):
        blocker = Blocker()
        assert not blocker.loaded(), "`import cesar` has loaded what only the laboratory may import"
        sys.meta_path.insert(0, blocker)


@pytest.fixture
def byte_tokenizer(tmp_path):
    """A GPT-2 tokenizer of the bytes, of " A" to " H" and of the end token."""
    pre_tokenizers = pytest.importorskip("tokenizers.pre_tokenizers")
    pytest.importorskip("transformers")
    words = [
        *sorted(pre_tokenizers.ByteLevel.alphabet()),
        *(f"Ġ{letter}" for letter in LETTERS),
        "<|endoftext|>",
    ]
    folder = tmp_path / "gpt2"
    folder.mkdir()
    numbers = {word: number for number, word in enumerate(words)}
    (folder / "vocab.json").write_text(json.dumps(numbers), encoding="utf-8")
    merges = ["#version: 0.2", *(f"Ġ {letter}" for letter in LETTERS)]
    (folder / "merges.txt").write_text("\n".join(merges) + "\n", encoding="utf-8")
    return words


@pytest.fixture
def pieces(tmp_path):
    """A SentencePiece model with T5's special tokens, of a few words."""
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = tmp_path / "t5"
    folder.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["summarize: the cat sat on the mat, and went to sleep"] * 20),
        model_prefix=str(folder / "spiece"),
        vocab_size=30,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    return folder


@pytest.fixture
def network(tmp_path):
    """Make a fully connected network; the folders of its peers."""
    pytest.importorskip("grpc")
    from support.lan import make_network  # noqa: PLC0415

    def make(peers=3, *, every=2, method=SECAGG, name="net"):
        rounds = f"every = {every}\nceiling = 60.0\nfloor = 30.0"
        make_network(tmp_path / name, nx.complete_graph(peers), method, rounds=rounds)
        return [tmp_path / name / f"peer-{i}" for i in range(peers)]

    return make


@pytest.fixture
def together():
    """Run a function of a peer at all peers of a network at once; the results in the peers' order."""

    def run(folders, job):
        def one(folder):
            with cesar.Peer.join(folder) as peer:
                return job(peer)

        with ThreadPoolExecutor(len(folders)) as pool:
            return list(pool.map(one, folders))

    return run


settings.register_profile(
    "cesar", deadline=None
)  # a first call may compile its kernel, and machines are busy
settings.load_profile("cesar")
