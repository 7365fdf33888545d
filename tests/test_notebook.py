"""The notebook runs from top to bottom, and shows what its text says."""

import ast
import json
import re
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parent.parent / "examples" / "secure_round.ipynb"


def test_the_notebook_runs_from_top_to_bottom(capsys):
    pytest.importorskip("torch")
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    names, shown = {}, []
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], "keep it without outputs: they are made where it is run"
            tree = ast.parse("".join(cell["source"]))
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, NOTEBOOK.name, "exec"), names)
            if last is not None:  # a notebook shows the value of a cell's last line
                shown.append(eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names))
    noise, curves = (one for one in shown if one is not None)
    assert len(noise.data) == 2
    assert [len(line.x) for line in curves.data] == [
        12
    ] * 4  # eight tests while training, four while settling
    assert all(line.y[-1] > 85 for line in curves.data)
    figures = dict(re.findall(r"^(largest .*|correlation .*): (\S+)$", capsys.readouterr().out, re.MULTILINE))
    assert len(figures) == 4
    correlation = figures.pop(next(name for name in figures if name.startswith("correlation")))
    assert abs(float(correlation)) < 0.05
    assert all(float(error) < 1e-6 for error in figures.values())
