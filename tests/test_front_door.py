"""What a newcomer meets first: the README, its pictures, and the page for when things go wrong."""

import ast
import importlib.util
import json
import re
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml

import cesar
from cesar.experiment import config, run
from cesar.experiment.results import read_study, rows_of
from cesar.reproduce.document import write_document
from cesar.reproduce.figures.approaches import strongest
from cesar.reproduce.outcomes import read_all, read_shorter
from cesar.reproduce.plots import draw

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
TROUBLES = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^\| (`[^|]*) \|", TROUBLES, re.MULTILINE)


def tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / "pictures" / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def literals(tree):
    """Every text that the code can print, with a mark for each part that is filled in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%(\.\d+)?[sdrf]", "\0", node.value)


@cache
def printed():
    files = sorted((ROOT / "src").rglob("*.py"))
    return [text for file in files for text in literals(ast.parse(file.read_text(encoding="utf-8")))]


def is_printed(message):
    """Whether the parts between the dots stand in one text of the code, in this order and with a gap between them."""
    pattern = re.compile("\0.*?".join(map(re.escape, message.removesuffix("…").split("…"))), re.DOTALL)
    return any(pattern.search(text) for text in printed())


def test_the_readme_is_short_and_has_its_pictures():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 130
    pictures = ["docs/who-sees-what.svg", "docs/accuracy-bytes.svg", "docs/network-up.svg"]
    assert re.findall(r"!\[.+?\]\((.+?)\)", text) == pictures
    assert "laboratory" not in text


def test_every_message_of_the_page_is_one_that_the_code_prints():
    said = [message for row in MESSAGES for message in re.findall(r"`([^`]+)`", row)]
    assert len(said) > 40
    assert [message for message in said if not is_printed(message)] == []


def test_a_message_that_nobody_prints_is_noticed():
    assert is_printed("this command needs …: pip install 'cesar-learning[…]'")
    assert not is_printed("this command wants …: pip install 'cesar-learning[…]'")
    assert not is_printed("pip install …: this command needs")


def test_the_citation_is_that_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == cesar.__version__
    assert citation["license"] == "MIT"
    assert len(citation["references"][0]["authors"]) == 5


def test_the_words_in_the_picture_add_up_to_the_sum_in_it():
    """The three rows of noise are a real share each: modulo 2^32 their sum is that of the three rows of values."""
    picture = (DOCS / "who-sees-what.svg").read_text(encoding="utf-8").replace("−", "-")
    rows = re.findall(r'class="(ink|sum|noise) mono">([^<]+)<', picture)
    values = np.array([[float(v) for v in text.split()] for kind, text in rows if kind == "ink"])
    words = np.array([[int(w, 16) for w in text.split()] for kind, text in rows if kind == "noise"])
    (sums,) = ([float(v) for v in text.split()] for kind, text in rows if kind == "sum")
    assert values.shape == words.shape == (3, 3)
    assert values.sum(axis=0) == pytest.approx(sums, abs=2e-4)  # four digits of each are shown
    total = words.sum(axis=0).astype(np.uint32).view(np.int32)
    scale = total / np.array(sums)
    assert scale == pytest.approx(np.full(3, 2.0 ** round(np.log2(scale.mean()))), rel=1e-3)
    assert np.unique(words).size == 9


def test_the_picture_of_a_round_is_drawn_from_a_round():
    drawn = tool("who_sees_what").one_round()
    assert drawn.words.shape == (3, 3)
    assert drawn.sums == pytest.approx(drawn.values.sum(axis=0, dtype=np.float64), abs=1e-5)


def test_the_table_in_the_picture_is_one_of_peers_at_work():
    picture = (DOCS / "network-up.svg").read_text(encoding="utf-8")
    assert len(re.findall(r"runs", picture)) == 8
    assert "font-face" not in picture  # nothing is fetched from elsewhere


def test_the_plot_is_that_of_the_runs_in_the_repository():
    drawn = draw([tool("headline").panel(read_study(DOCS / "results" / "groups" / "shards"))])
    assert drawn == (DOCS / "accuracy-bytes.svg").read_text(encoding="utf-8")


def test_the_first_page_has_the_figures_of_these_runs():
    text = " ".join((DOCS.parent / "README.md").read_text(encoding="utf-8").split())
    rows = {row.title: row for row in rows_of(read_study(DOCS / "results" / "groups" / "shards"))}
    saved = json.loads((DOCS / "results" / "approaches" / "cifar10" / "neighbour.json").read_text())
    areas = {method["title"]: strongest(method) for method in saved["windows"][-1]["methods"]}
    assert len(saved["windows"][-1]["methods"][0]["rounds"]) == 20
    few, full = tool("headline").SHOWN
    for name, attacked in ((full, full), ("D-PSGD, random 30 %", "D-PSGD, random 30%"), (few, few)):
        row = rows[name]
        assert row.seeds == 3
        assert row.before_settling is not None
        figures = f"{100 * row.value:.1f} % | {100 * row.before_settling:.1f} % | {row.bytes / 1e6:.0f} MB"
        assert f"{figures} | {areas[attacked]:.2f} |" in text, name
    assert f"{100 * (rows[full].value - rows[few].value):.1f} points" in text
    assert f"with {100 * rows[few].bytes / rows[full].bytes:.0f} % of the bytes" in text
    evenly = {row.title: row for row in rows_of(read_study(DOCS / "results" / "groups" / "iid"))}
    assert evenly[few].seeds == evenly[full].seeds == 3
    assert f"reach {100 * evenly[few].value:.1f} % and {100 * evenly[full].value:.1f} %" in text
    assert f"in groups of three, with 30 % at random, it is {areas['groups of 3']:.2f}" in text


def test_kept_runs_are_those_of_their_files():
    """Who runs docs/results/NAME.toml gets what docs/results/NAME holds."""
    files = sorted((DOCS / "results").glob("*.toml"))
    assert len(files) >= 6
    for file in files:
        assert run.read(file.with_suffix("")) == config.load(file, ()), file.name


def test_results_are_written_from_the_kept_runs(tmp_path):
    kept = [DOCS / "results"]
    write_document(read_all(kept), read_shorter(kept), tmp_path / "results.md")
    assert (tmp_path / "results.md").read_text() == (DOCS / "results.md").read_text()
    for path in (tmp_path / "results").glob("*.svg"):
        assert path.read_bytes() == (DOCS / "results" / path.name).read_bytes()
