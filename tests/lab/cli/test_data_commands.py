"""`cesar data`: what there is, and advice where it cannot be fetched."""

import pytest
from rich.console import Console

from cesar.base.errors import ConfigError, DataError
from cesar_lab.cli import data
from support.commands import call, read


@pytest.fixture(autouse=True)
def empty_machine(tmp_path, monkeypatch):
    """Nothing of this machine's datasets is seen."""
    monkeypatch.delenv("CESAR_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(data, "console", Console(width=120))


def write(path, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_it_lists_what_is_found_and_how_to_get_the_rest(tmp_path):
    write(tmp_path / "xsum" / "train.jsonl", "{}\n{}\n")
    write(tmp_path / "xsum" / "test.jsonl", "{}\n")
    write(tmp_path / "t5" / "spiece.model")
    listed = read("data", "list", "--data-dir", tmp_path)
    rows = {row["name"]: row for row in listed["datasets"]}
    assert listed["looked_in"] == [str(tmp_path), str(tmp_path / "cache" / "cesar")]
    assert (rows["xsum"]["found"], rows["xsum"]["train"], rows["xsum"]["test"]) == (f"{tmp_path}/xsum", 2, 1)
    assert rows["qasc"]["found"] is None
    assert rows["qasc"]["get"] == f"cesar data get qasc --data-dir {tmp_path}"
    assert rows["digits"]["found"] == "scikit-learn"
    shown = call("data", "list")
    assert "missing: cesar data get cifar10" in shown
    assert "licence of celeba: non-commercial research" in shown


def test_it_refuses_with_advice(tmp_path):
    with pytest.raises(DataError):
        call("data", "get", "celeba", "--data-dir", tmp_path)
    with pytest.raises(ConfigError, match="did you mean 'cifar10'"):
        call("data", "get", "cifar")
    assert "needs no download" in call("data", "get", "digits")
