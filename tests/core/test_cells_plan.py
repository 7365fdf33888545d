"""How nodes are divided into cells, which cells hear which, and what is refused."""

import re
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

import cesar
from cesar.graph.cells import ExponentialCells, graph_of
from cesar.kernels.slicing import spans


def mixing(graph, cells, rounds, start=0):
    """The product of the averaging matrices of some rounds."""
    product = np.eye(cells)
    for round_ in range(start, start + rounds):
        step = np.zeros((cells, cells))
        for cell in range(cells):
            links = graph.heard(cell, round_)
            for heard in links:
                step[cell, heard.cell] = heard.weight
            step[cell, cell] = 1 - sum(heard.weight for heard in links)
        product = step @ product
    return product


@pytest.mark.parametrize(("nodes", "size"), [(3, 3), (7, 4), (8, 4), (11, 4), (48, 4), (50, 3), (1000, 8)])
def test_every_node_is_in_one_cell(nodes, size):
    plan = cesar.Cells(size=size).plan(nodes)
    assert sorted(node for cell in plan.cells for node in cell) == list(range(nodes))
    sizes = {len(cell) for cell in plan.cells}
    assert min(sizes) >= size
    assert max(sizes) - min(sizes) <= 1
    assert len(plan.cells) == max(1, nodes // size)


def test_the_seed_decides_who_is_with_whom():
    method = cesar.Cells()
    assert method.plan(40, seed=1).cells == method.plan(40, seed=1).cells
    assert method.plan(40, seed=1).cells != method.plan(40, seed=2).cells


def test_an_owners_nodes_are_spread():
    owners = {node: f"owner {node // 4}" for node in range(24)}  # six owners of four nodes each
    plan = cesar.Cells(size=4).plan(24, owners)
    for cell in plan.cells:
        assert len({owners[node] for node in cell}) >= 3
    two = cesar.Cells(size=4, collusion=2).plan(24, owners)
    for cell in two.cells:
        assert len({owners[node] for node in cell}) == 4


def test_owners_that_cannot_be_spread():
    owners = {node: f"owner {node % 2}" for node in range(8)}
    with pytest.raises(cesar.PrivacyError, match=r"2 owner\(s\) of 8 nodes .* larger cells"):
        cesar.Cells(size=4).plan(8, owners)


@pytest.mark.parametrize("cells", [2, 4, 8, 16])
def test_a_pass_of_a_power_of_two_is_exact(cells):
    graph = ExponentialCells(cells)
    assert graph.settling_rounds == cells.bit_length() - 1
    for start in (0, 1, 5):
        np.testing.assert_allclose(mixing(graph, cells, graph.settling_rounds, start), 1 / cells, atol=1e-12)


@pytest.mark.parametrize("cells", [3, 5, 6, 7, 12, 25])
@pytest.mark.parametrize("named", ["exponential", "complete", "ring"])
def test_settling_leaves_a_thousandth(cells, named):
    graph = graph_of(named, cells)
    left = mixing(graph, cells, graph.settling_rounds) - 1 / cells
    assert np.linalg.norm(left, 2) <= 1e-3


def left_after_a_pass(cells):
    """From the matrices themselves, not from their frequencies."""
    graph = ExponentialCells(cells)
    return np.linalg.norm(mixing(graph, cells, graph.steps) - 1 / cells, 2)


def test_a_pass_leaves_a_quarter_at_the_most():
    left = {cells: left_after_a_pass(cells) for cells in range(2, 70)}
    assert max(left, key=left.get) == 3
    assert left[3] == pytest.approx(0.25)


def test_the_note_has_what_is_left_and_how_long_it_takes():
    note = (Path(__file__).parents[2] / "docs/design/018-cells-learning.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (0\.\d+) \| (\d+) \|$", note, re.MULTILINE)
    assert len(rows) > 8
    for cells, steps, left, rounds in rows:
        graph = ExponentialCells(int(cells))
        assert (graph.steps, graph.settling_rounds) == (int(steps), int(rounds))
        assert f"{left_after_a_pass(int(cells)):.3f}" == left


def test_weights_keep_the_mean():
    graph = graph_of(nx.star_graph(4), 5)
    product = mixing(graph, 5, 3)
    np.testing.assert_allclose(product.sum(axis=0), 1)
    np.testing.assert_allclose(product.sum(axis=1), 1)


@pytest.mark.parametrize(("nodes", "size"), [(16, 4), (11, 4), (23, 4), (26, 3), (12, 5)])
@pytest.mark.parametrize("named", ["exponential", "ring"])
def test_links_are_those_that_frames_take(nodes, size, named):
    """Whatever the size of the model: two nodes exchange only if a link is there; a link is there only if some models need it."""
    plan = cesar.Cells(size=size, graph=named if nodes // size > 2 else "exponential").plan(nodes)
    pairs = {(a, b) for cell in plan.cells for a in cell for b in cell if a < b}
    for words in (*range(1, 60), 1404):
        for number, cell in enumerate(plan.cells):
            for other in {h for t in range(9) for h in plan.graph.hearing(number, t)}:
                for a, mine in zip(cell, spans(words, len(cell)), strict=True):
                    theirs = zip(plan.cells[other], spans(words, len(plan.cells[other])), strict=True)
                    pairs |= {(min(a, b), max(a, b)) for b, span in theirs if len(mine.meet(span))}
    assert {(min(edge), max(edge)) for edge in plan.links().edges} == pairs


def test_hearing_is_the_inverse_of_heard():
    for graph, cells in ((ExponentialCells(6), 6), (graph_of("regular:3", 8), 8)):
        for round_ in range(4):
            for cell in range(cells):
                for heard in graph.heard(cell, round_):
                    assert cell in graph.hearing(heard.cell, round_)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"size": 2}, "cells of 2 do not stop 1 colluding"),
        ({"size": 4, "collusion": 3}, "Use size=5"),
        ({"size": 1, "collusion": 0}, "2 to 255 members"),
        ({"sparsifier": cesar.TopK(0.1)}, "no single node's set is shown; use"),
        ({"ring_bits": 17}, "ring_bits is 17"),
        ({"patience": 0}, "patience is 0"),
        ({"collusion": -1}, "collusion is -1"),
    ],
)
def test_impossible_settings(settings, said):
    with pytest.raises(cesar.ConfigError, match=said):
        cesar.Cells(**settings)


@pytest.mark.parametrize(("block", "said"), [(48, "block is 48"), (128, "block is 128")])
def test_impossible_blocks(block, said):
    with pytest.raises(cesar.ConfigError, match=said):
        cesar.BlockTopK(0.1, block)
    with pytest.raises(cesar.ConfigError, match="alpha is 0"):
        cesar.BlockTopK(0.0)


def test_fewer_nodes_than_a_cell():
    with pytest.raises(cesar.ConfigError, match=r"3 node\(s\) make no cell of 4"):
        cesar.Cells(size=4).plan(3)


def test_a_graph_of_cells_that_is_not_connected():
    parts = nx.disjoint_union(nx.path_graph(2), nx.path_graph(2))
    with pytest.raises(cesar.ConfigError, match="graph of 4 cells: the graph falls into 2 parts"):
        cesar.Cells(size=4, graph=parts).plan(16)
    with pytest.raises(cesar.ConfigError, match=r"graph of 4 cells: .* exactly 0\.\.3"):
        cesar.Cells(size=4, graph=nx.path_graph(5)).plan(16)
    with pytest.raises(cesar.ConfigError, match="graph of 4 cells: 'hexagonal' is not a topology"):
        cesar.Cells(size=4, graph="hexagonal").plan(16)


def test_a_plan_that_is_given_is_checked():
    method = cesar.Cells(size=3)
    with pytest.raises(cesar.ConfigError, match="in two cells"):
        method.plan_of([(0, 1, 2), (2, 3, 4)])
    with pytest.raises(cesar.PrivacyError, match=r"cell 1: 2 member\(s\)"):
        method.plan_of([(0, 1, 2), (3, 4)])
    with pytest.raises(cesar.PrivacyError, match=r"cell 0: members of 2 owner\(s\)"):
        method.plan_of([(0, 1, 2)], {0: "a", 1: "a"})
    with pytest.raises(cesar.ConfigError, match="node 9 is in no cell of this plan"):
        method.plan_of([(0, 1, 2)]).place(9)
