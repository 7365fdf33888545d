"""Nodes of cells do anything in any order: Hypothesis lets them come, go, be late and settle, and looks at what holds always."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import cesar
from cesar.protocol.wire import Kind
from support.cell_network import SIZE, Network

NETWORKS = {
    "one cell that can spare nobody": {"nodes": 4, "patience": 100},
    "one cell of five that waits": {"nodes": 5, "patience": 100},
    "one cell of five that goes on": {"nodes": 5, "patience": 2},
    "two cells": {"nodes": 9, "patience": 2},
}
SPARSIFIERS = [cesar.FullSharing(), cesar.RandomSubsampling(0.3), cesar.BlockTopK(0.25, 16)]
KINDS = [Kind.CELL_AGREE, Kind.CELL_SCATTER, Kind.CELL_EXCHANGE, Kind.CELL_GATHER]

members = st.integers(0, 8)


class Site(RuleBasedStateMachine):
    """Every node trains +1 at every position and round, so that a number that is counted twice shows."""

    network = None

    @initialize(name=st.sampled_from(sorted(NETWORKS)), sparsifier=st.sampled_from(SPARSIFIERS), late=members)
    def begin(self, name, sparsifier, late):
        nodes, patience = NETWORKS[name]["nodes"], NETWORKS[name]["patience"]
        self.network = Network(nodes, patience=patience, sparsifier=sparsifier)
        self.nodes, self.one_cell = nodes, name.startswith("one")
        self.away = {late} if late < nodes else set()  # one of them may join only later
        self.held = []

    @rule(node=members)
    def leaves(self, node):
        self.away.add(node % self.nodes)

    @rule(node=members)
    def comes_back(self, node):
        self.away.discard(node % self.nodes)

    @rule(slow=st.lists(st.tuples(members, st.sampled_from(KINDS)), max_size=2), rounds=st.integers(1, 3))
    def train(self, slow, rounds):
        """Some nodes are slow: in the first round what they send of a kind comes a round late."""
        self.train_once({(node % self.nodes, kind) for node, kind in slow})
        for _ in range(rounds - 1):
            self.train_once()

    def train_once(self, slow=frozenset()):
        before = [state.common.copy() for state in self.states()]
        up = set(range(self.nodes)) - self.away
        held, letters = [], self.held

        def arrives(sender, recipient, frame):
            if (sender, frame.kind) not in slow:
                return True
            held.append((sender, (recipient,), bytes(frame.payload)))
            return False

        models = self.network.models.copy()
        steps = np.ones_like(models)
        late = [letter for letter in letters if letter[1][0] in up]
        result = self.network.round(
            steps=steps, late=late, crashes=dict.fromkeys(self.away, "before_announce"), arrives=arrives
        )
        self.held = held
        for cell in result.cells:
            here = [node for node in cell if node not in self.away]
            if before and len(here) < 4:  # too few for a sum: they keep what they have trained
                assert all(result.reports[node].summed == () for node in here)
        for node in self.away:  # it trains on by itself
            np.testing.assert_array_equal(self.network.models[node], models[node] + 1)
        return result

    def states(self):
        return self.network.ensemble.states if self.network.rounds else []

    @precondition(lambda self: self.network.rounds > 0)
    @rule()
    def all_is_well(self):
        """All are there and nothing is late: within a few rounds everybody is in the sum of its whole cell."""
        self.away = set()
        for _ in range(5):
            result = self.train_once()
        for cell in result.cells:
            assert all(result.reports[node].summed == cell for node in cell)
        self.network.check_alike()

    @precondition(lambda self: self.network.rounds > 0)
    @rule()
    def settle(self):
        """Nobody trains for the planned number of rounds: everybody ends at the mean of the cells' models. Then they train on."""
        self.all_is_well()
        network, method = self.network, self.network.ensemble.method
        mean = np.mean([network.common[cell[0]] for cell in network.ensemble.plan.cells], axis=0)
        rounds = network.settle()
        for _ in range(rounds):
            network.round(steps=np.zeros_like(network.models))
        np.testing.assert_allclose(network.common, np.repeat(mean[None], self.nodes, axis=0), atol=1e-4)
        network.ensemble.use_method(method)
        network.models = np.array(network.common) + network.unsent

    def teardown(self):
        if self.network is not None and self.network.rounds:
            self.all_is_well()

    @invariant()
    def members_with_one_link_hold_one_model(self):
        if self.network is None or not self.network.rounds:
            return
        held = {}
        for cell in self.network.ensemble.plan.cells:
            for node in cell:
                state = self.states()[node]
                found = held.setdefault((cell, state.claim.chain()), state)
                np.testing.assert_array_equal(state.common, found.common)

    @invariant()
    def nothing_counts_twice(self):
        """A model is at the most so far from the start as one node can go alone."""
        if self.network is None or not self.network.rounds:
            return
        gone = np.array(self.network.common) - self.network.start
        assert gone.shape == (self.nodes, SIZE)
        assert gone.min() >= -1e-3
        if (
            self.one_cell or self.network.method.sparsifier == SPARSIFIERS[0]
        ):  # what is unsent comes on top of what was heard
            assert gone.max() <= self.network.rounds + 1e-3
        if self.one_cell and self.network.method.patience == 100 and not self.in_flux():
            self.network.check_account()

    def in_flux(self):
        """Somebody lacks the newest model, or does not know yet whether a sum came about."""
        states = self.states()
        return len({state.claim.chain() for state in states}) > 1 or any(s.doubt is not None for s in states)


TestCells = Site.TestCase
TestCells.settings = settings(max_examples=25, stateful_step_count=12, deadline=None, derandomize=True)
