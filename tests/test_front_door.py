"""What a newcomer meets first: the README, its pictures, and the page for when things go wrong."""

import ast
import importlib.util
import json
import re
import sys
from functools import cache
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import yaml

import cesar
from cesar_lab.paper.document import write_document
from cesar_lab.paper.outcome import read_all, read_shorter, read_timed
from cesar_lab.run import config
from cesar_lab.run import execute as run
from cesar_lab.show.paired import paired
from cesar_lab.show.results import read_study, rows_of

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


def test_the_readme_has_its_pictures():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    pictures = ["docs/who-sees-what.svg", "docs/network-up.svg", "docs/results/cells-bytes.svg"]
    assert re.findall(r"!\[.+?\]\((.+?)\)", text) == pictures
    assert "laboratory" not in text


def test_the_first_screen_has_the_two_commands_and_the_warning():
    first = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## ", 1)[0]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    shown = re.findall(r"^make ([a-z-]+)", first, re.MULTILINE)
    assert shown == ["demo", "test"]
    assert {*shown} <= {*targets}
    assert "The paper's method, CESAR, protects one round and not many" in first


PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted((ROOT / "src").rglob("*.html"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_nobody_offers_fixed_groups_any_more(page):
    """They were refuted and deleted; what is said of them is in the past."""
    text = page.read_text(encoding="utf-8")
    assert [words for words in ("group_size", "--group-size", "regroup_after") if words in text] == []


def test_every_message_of_the_page_is_one_that_the_code_prints():
    said = [message for row in MESSAGES for message in re.findall(r"`([^`]+)`", row)]
    assert len(said) > 40
    assert [message for message in said if not is_printed(message)] == []


def test_a_message_that_nobody_prints_is_noticed():
    assert is_printed("this command needs …; in a copy of cesar's repository: pip install '.[…]'")
    assert not is_printed("this command wants …; in a copy of cesar's repository: pip install '.[…]'")
    assert not is_printed("pip install …: this command needs")


def test_the_citation_is_that_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == cesar.__version__
    assert citation["license"] == "MIT"
    assert len(citation["references"][0]["authors"]) == 5


def test_the_picture_is_a_round_of_a_cell():
    """The values add up to the sum, and the noise is what the engine sends."""
    picture = (DOCS / "who-sees-what.svg").read_text(encoding="utf-8").replace("−", "-")
    rows = re.findall(r'class="(ink|sum|noise) mono">([^<]+)<', picture)
    values = np.array([[float(v) for v in text.split()] for kind, text in rows if kind == "ink"])
    words = np.array([[int(w, 16) for w in text.split()] for kind, text in rows if kind == "noise"])
    (sums,) = ([float(v) for v in text.split()] for kind, text in rows if kind == "sum")
    assert values.shape == words.shape == (3, 3)
    assert values.sum(axis=0) == pytest.approx(sums, abs=2e-4)  # four digits of each are shown
    assert np.unique(words).size == 9
    drawn = tool("who_sees_what").one_round()
    assert np.array_equal(drawn.words, words)
    assert drawn.sums == pytest.approx(drawn.values.sum(axis=0, dtype=np.float64), abs=1e-5)


def test_the_table_in_the_picture_is_one_of_peers_at_work():
    picture = (DOCS / "network-up.svg").read_text(encoding="utf-8")
    assert len(re.findall(r"runs", picture)) == 8
    assert "font-face" not in picture  # nothing is fetched from elsewhere


def described(path):
    """The figures that a picture is drawn from, as it says them itself."""
    return next(ET.parse(path).getroot().iter("{http://purl.org/dc/elements/1.1/}description")).text


def test_what_an_attacker_gets_is_what_the_note_says():
    """Cells of each size, from outside and from inside, on the first page, on the page of settings and in the design note."""
    pages = [(ROOT / "README.md").read_text(), (DOCS / "settings.md").read_text()]
    note, counts = (DOCS / "design" / "018-cells-learning.md").read_text(), []
    for page in pages:
        found = re.findall(r"of a cell of (\d) \| (0\.\d+) \| (0\.\d+) \|", page)
        counts.append(len(found))
        for size, outside, inside in found:
            for place, figure in (("outside", outside), ("inside", inside)):
                (row,) = re.findall(rf"^\| cells of {size}, from {place} \|.*$", note, re.MULTILINE)
                assert row.split(" | ")[-1].startswith(figure)
    assert counts == [2, 4]
    (row,) = re.findall(r"^\| CESAR, random 30 % \|.*$", note, re.MULTILINE)
    assert f"all rounds of CESAR | {row.split(' | ')[-1].removesuffix(' |')} |" in pages[0]


def test_kept_runs_are_those_of_their_files():
    """Who runs docs/results/NAME.toml gets what docs/results/NAME holds."""
    files = sorted((DOCS / "results").glob("*.toml"))
    assert len(files) >= 4
    for file in files:
        assert run.read(file.with_suffix("")) == config.load(file, ()), file.name


def test_the_note_on_cells_has_the_figures_of_its_runs():
    note = (DOCS / "design" / "018-cells-learning.md").read_text(encoding="utf-8")
    (cells,) = (
        row
        for row in rows_of(read_study(DOCS / "results" / "cells-shards"))
        if row.title == "cells of 4, everything"
    )
    assert cells.seeds == 8
    by_seed = ", ".join(f"{100 * value:.2f}" for value in cells.trained_by_seed.values())
    assert f"reach {100 * cells.before_settling:.2f} % at the end of training (by seed: {by_seed})" in note
    assert (
        f"{100 * cells.value:.2f} % after settling, for {(cells.bytes - cells.settle_bytes) / 1e6:.2f} MB"
        in note
    )
    saved = json.loads((DOCS / "results" / "attack-by-size" / "filter.json").read_text(encoding="utf-8"))
    assert len(saved["methods"]) > 8
    for one in saved["methods"]:
        areas = " | ".join(f"{one[f'auc_{name}']:.3f}" for name in ("true", "mean", "trained", "settled"))
        assert f"| {one['title']} | {one['hidden']:.1f} | {areas} |" in note


def test_the_benchmarks_of_cells_are_those_of_their_files():
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    found = sorted((DOCS / "results" / "bench").glob("overhead-cells-*.json"))
    assert found
    for file in found:
        one = json.loads(file.read_text(encoding="utf-8"))
        low, high = one["spread_to_dpsgd"]
        assert low <= one["ratio_to_dpsgd"] <= high
        protocol = " | ".join(f"{one[name]['protocol_seconds']:.3f}" for name in ("method", "dpsgd"))
        figures = f"{one['ratio_to_dpsgd']:.2f} | {low:.2f} to {high:.2f} | {one['ratio_to_bare']:.2f} | {protocol} |"
        assert f"| {figures}" in page, file.name


def test_the_ten_sentences_have_no_figure_of_their_own():
    """What the first screen of the results says stands below, where it is made from raw files."""
    first, rest = (DOCS / "results.md").read_text(encoding="utf-8").split("**How to read this page.**")
    sentences = re.findall(r"^\d+\. (.+)$", first, re.MULTILINE)
    assert len(sentences) == 10
    figures = [figure for text in sentences for figure in re.findall(r"[−+]?\d+\.\d+", text)]
    assert len(figures) > 15
    below = rest.split("## The claims", 1)[1]
    assert [figure for figure in figures if figure not in below] == []


def test_claims_that_are_named_by_their_number_are_the_ones_that_are_meant():
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    titles = dict(re.findall(r"^\| (\d+)\. (.+?) \| .* \|$", text, re.MULTILINE))
    named = {
        number for group in re.findall(r"[Cc]laims? ([\d and]+)", text) for number in group.split(" and ")
    }
    meant = {
        "1": "from its neighbours",
        "3": "every dataset",
        "16": "colluders",
        "20": "Dropouts",
        "27": "(`neighbours`)",
        "28": "(`arrived`)",
        "33": "Larger cells",
        "35": "Absences",
    }
    assert {number.strip() for number in named} == {*meant}
    assert [number for number, words in meant.items() if words not in titles[number]] == []


def test_results_are_written_from_the_kept_runs(tmp_path):
    kept = [DOCS / "results"]
    write_document(read_all(kept), read_shorter(kept), tmp_path / "results.md", read_timed(kept))
    assert (tmp_path / "results.md").read_text() == (DOCS / "results.md").read_text()
    pictures = sorted((tmp_path / "results").glob("*.svg"))
    assert [path.name for path in pictures] == [
        path.name for path in sorted((DOCS / "results").glob("*.svg"))
    ]
    for path in pictures:
        assert described(path) == described(DOCS / "results" / path.name)


def test_the_first_page_has_the_figures_of_cells():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = {row.title: row for row in rows_of(read_study(DOCS / "results" / "cells-shards"))}
    names = ("D-PSGD, everything", "D-PSGD, random 30 %", "cells of 4, everything", "cells of 4, blocks 17 %")
    for name in names:
        row = rows[name]
        assert row.seeds >= 3
        shown = (100 * row.before_settling, 100 * row.value, (row.bytes - row.settle_bytes) / 1e6, row.seeds)
        assert "| {:.1f} | {:.1f} | {:.0f} | {} |".format(*shown) in text, name
    time = json.loads(
        (DOCS / "results" / "bench" / "overhead-cells-everything.json").read_text(encoding="utf-8")
    )
    assert f"cells of four take {time['ratio_to_dpsgd']:.2f} times as long" in text
    assert f"A round takes {100 * (time['ratio_to_dpsgd'] - 1):.0f} % longer" in text


def points(one, other):
    """A difference in points, as pages print it."""
    found = paired(one, other)
    assert found is not None
    assert found.margin is not None
    mean, low, high = (
        100 * value for value in (found.mean, found.mean - found.margin, found.mean + found.margin)
    )
    return f"{mean:+.2f} ({low:+.2f} to {high:+.2f})".replace("-", "−")


def test_pages_have_the_differences_of_their_runs():
    """README and the note on cells; a run that is added changes them."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    note = (DOCS / "design" / "018-cells-learning.md").read_text(encoding="utf-8")
    runs = {
        name: {row.title: row for row in rows_of(read_study(DOCS / "results" / name))}
        for name in ("cells-shards", "cells-iid", "cells-away-10", "cells-away-20", "cells-fewer")
    }
    shards, whole, blocks = runs["cells-shards"], "cells of 4, everything", "cells of 4, blocks 17 %"

    def both(one, other):
        return points(one.trained_by_seed, other.trained_by_seed), points(one.by_seed, other.by_seed)

    assert "| {} | {} | 7 |".format(*both(shards[whole], shards["D-PSGD, everything"])) in readme
    assert "| {} | {} | 3 |".format(*both(shards[blocks], shards["D-PSGD, random 30 %"])) in readme
    assert f"| {both(shards[blocks], shards['D-PSGD, everything'])[1]}: not decided | 3 |" in readme
    for title in (whole, blocks, "D-PSGD, everything"):
        rare, often = (both(runs[f"cells-away-{part}"][title], shards[title]) for part in (10, 20))
        assert f"| {title} | {' | '.join((*rare, *often))} |" in note
        if title != blocks:
            assert "| {} | {} | 3 |".format(*rare) in readme
    trained, settled = both(runs["cells-fewer"][whole], shards[whole])
    assert f"{settled.replace(' (', ' points (')} settled, {trained} trained" in note
    for title, other, when in (
        ("cells of 8, everything", whole, 0),
        ("cells of 8, everything", whole, 1),
        (whole, "cells of 3, everything", 0),
        ("cells of 4, everything, three cells heard", whole, 0),
        ("cells of 4, everything, three cells heard", whole, 1),
    ):
        assert both(shards[title], shards[other])[when] in note.replace(" points (", " ("), (title, other)
    iid = both(runs["cells-iid"][whole], runs["cells-iid"]["D-PSGD, everything"])
    assert all(one in note.replace(" points (", " (") for one in iid)


def figures(folder):
    """Accuracy in percent with its standard error over seeds, of each method in a folder of kept runs."""
    rows = {row.title: row for row in rows_of(read_study(folder))}
    assert {row.seeds for row in rows.values()} == {3}
    return {
        title: f"{100 * row.value:.2f}" + (f" ± {100 * row.error:.2f}" if row.error else "")
        for title, row in rows.items()
    }


def test_the_note_on_noise_has_the_figures_of_its_runs():
    note, page = (
        (DOCS / name).read_text(encoding="utf-8") for name in ("design/023-noise-in-numbers.md", "privacy.md")
    )
    for folder in sorted((DOCS / "results" / "noise").iterdir()):
        saved = json.loads((folder / "membership.json").read_text(encoding="utf-8"))["methods"]
        areas = {one["title"]: [one["sums"][k] for k in (0, -1)] for one in saved}
        for title, accuracy in figures(folder).items():
            first, last = areas[title]
            if folder.name == "methods":
                pattern = rf"\| {re.escape(title)} \| [\d.]+ \| {accuracy} \| .* \| {first['auc']:.3f} \| {last['auc']:.3f} \|"
                assert re.search(pattern, note), title
            else:
                shown = (f"{one['auc']:.3f} ± {one['auc_error']:.3f}" for one in (last, first))
                assert f"| {accuracy} | {' | '.join(shown)} |" in note, folder.name
                assert accuracy in page or folder.name == "unclipped"


def test_the_note_on_liars_has_the_figures_of_its_runs():
    note = (DOCS / "design" / "024-liars-in-numbers.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^\| .*`([\w-]+)` \| (.*) \|$", note, re.MULTILINE))
    for folder in sorted((DOCS / "results" / "liars").iterdir()):
        rows = {row.title: row for row in rows_of(read_study(folder))}
        cells = []
        for row in map(rows.get, ("cells, votes", "cells")):
            error = "" if row is None or row.error is None else f" ± {100 * row.error:.2f}"
            cells += ["–", "–"] if row is None else [f"{100 * row.value:.2f}{error}", str(row.seeds)]
        assert shown.pop(folder.name) == " | ".join(cells)
    for folder in sorted((DOCS / "results" / "liars-digits").iterdir()):
        rows = {row.title: row for row in rows_of(read_study(folder))}
        cells = [
            "–"
            if row is None
            else "diverged"
            if row.seeds < 3
            else f"{100 * row.value:.2f} ± {100 * row.error:.2f}"
            for row in map(rows.get, ("cells, votes", "D-PSGD, clipped", "cells"))
        ]
        assert shown.pop(folder.name) == " | ".join(cells)
    assert not shown


def test_the_note_on_dropouts_has_the_figures_of_the_runs_on_digits():
    note = (DOCS / "design" / "008-dropouts-in-few-rounds.md").read_text(encoding="utf-8")
    calm, *crashed = (
        {row.title: row.trained_by_seed for row in rows_of(read_study(DOCS / "results" / name))}
        for name in ("crashes-digits-0", "crashes-digits-10", "crashes-digits-20")
    )
    for percent, runs in zip((10, 20), crashed, strict=True):
        lost = [points(runs[one], calm[one.split(",")[0]]) for one in ("CESAR", "CESAR, abort", "D-PSGD")]
        assert f"| {percent} % | {' | '.join(lost)} |" in note
