"""Members of cells as processes, and what must hold of all that they have noted."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from support import cell_worker
from support.cell_worker import ATOMS, THERE
from support.processes import Processes


@dataclass
class Cells(Processes):
    """Members of cells.

    Attributes:
        liars: those who lie.
        clocks: those whose clock can be set wrong (`cell_worker.CLOCK`).
    """

    liars: tuple[int, ...] = ()
    clocks: tuple[int, ...] = ()

    def job(self, node):
        target = cell_worker.lie if node in self.liars else cell_worker.take_part
        target = cell_worker.take_part_by_another_clock if node in self.clocks else target
        arguments = (self.folder(node), len(self.network.roster.members), self.network.folder / "last")
        return target, (*arguments, self.namespaces.get(node), self.pause)

    @property
    def nodes(self):
        """Those that are honest."""
        return sorted(self.network.roster.members.keys() - set(self.liars))

    def summed(self, node):
        """In how many sums a member has been."""
        told = [line["report"] for line in cell_worker.notes(self.folder(node)) if line["event"] == "round"]
        return len({r["round"] for r in told if r["summed"]} | {r["landed"] for r in told} - {None})

    def done(self, cells):
        """In how many sums the members of these cells have been; the least."""
        return min(self.summed(node) for cell in cells for node in cell if node not in self.liars)

    def lies(self, liar):
        """How many it has told, the most in one of its lives."""
        return max((line["lies"] for line in cell_worker.notes(self.folder(liar))), default=0)

    def finish(self, seconds):
        """All settle, and end by themselves."""
        (self.network.folder / "last").write_text("-1")
        end = time.monotonic() + seconds
        for node in self.nodes:
            process = self.processes[node]
            process.join(max(0.0, end - time.monotonic()))
            assert process.exitcode == 0, f"peer {node}: {process.exitcode}\n{self.tails([node])}"

    # ── what must hold afterwards ───────────────────────────────────────────────────────────────────────

    @cached_property
    def told(self):
        return {node: cell_worker.notes(self.folder(node)) for node in self.nodes}

    def check_models(self, size):
        """Members that name the same model hold the same bits, and few atoms were handed in again; how many were compared, and
        in how many an atom had more than its share.
        """
        seen, checked, again = {}, 0, 0
        for cell in self.network.roster.plan.cells:
            for node in set(cell) & set(self.nodes):
                for line in self.told[node]:
                    if held := line.get("held"):
                        assert held["finite"], (node, line)
                        assert self.liars or held["most"] < 2 / size, (node, line)
                        name = (cell, held["round"], held["chain"])
                        assert seen.setdefault(name, held["hash"]) == held["hash"], (node, held["round"])
                        checked, again = checked + 1, again + (held["again"] > 0)
        return checked, again

    def check_account(self):
        """Every atom is in the settled model, or its own site has said that it is lost; how many were trained, lost in a
        crash, thrown away by a cell, and faded.
        """
        models = [np.load(self.folder(node) / cell_worker.FINAL) for node in self.nodes]
        for model in models[1:]:
            np.testing.assert_allclose(model, models[0], atol=1e-5)
        trained = crashed = thrown = faded = 0
        for node in self.nodes:
            own = models[0][ATOMS * node : ATOMS * (node + 1)][: cell_worker.phases(self.folder(node))]
            lost = {atom: line["event"] for line in self.told[node] for atom in line["lost"]}
            assert self.told[node][-1]["settled"], node
            absent = set(np.flatnonzero(own < THERE).tolist())
            faint = {atom for line in self.told[node] for atom in line.get("faded", ())}
            assert absent <= lost.keys() | faint, (node, absent - lost.keys())
            faded += len(faint)
            trained += len(own)
            crashed += sum(event == "started" for event in lost.values())
            thrown += sum(event != "started" for event in lost.values())
            told = [line["report"]["discarded"] ** 2 for line in self.told[node] if line["event"] == "round"]
            quiet = sum(len(line["lost"]) for line in self.told[node] if line["event"] == "round")
            assert quiet <= round(sum(told)), "a cell that throws something away says so"
        return trained, crashed, thrown, faded
