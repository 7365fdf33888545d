"""A simulated network of cells that trains at random, and keeps account of what it has trained."""

import numpy as np

import cesar
from cesar.sim.wires import drive

SIZE, TENSORS = 700, (100, 500, 100)


class Network:
    """Nodes that begin at one model; `round` trains, averages and writes down what was trained and thrown away."""

    def __init__(self, nodes, *, seed=1, owners=None, samples=None, **settings):
        settings = {"ring_bits": 32, **settings}
        self.draw = np.random.default_rng(seed)
        self.method = cesar.Cells(**settings)
        self.samples = samples
        self.ensemble = cesar.Ensemble(
            None, self.method, SIZE, nodes=nodes, seed=seed, tensors=TENSORS, owners=owners, samples=samples
        )
        start = self.draw.normal(size=SIZE).astype(np.float32)
        self.start, self.models = start, np.repeat(start[None], nodes, axis=0)
        self.trained = np.zeros((nodes, SIZE))
        self.discarded = np.zeros((nodes, SIZE))
        self.rounds = 0

    def round(self, *, steps=None, late=(), **options):
        """Train and average; `late` has letters of earlier rounds, which come in before anything else."""
        if steps is None:
            steps = self.draw.normal(size=self.models.shape).astype(np.float32)
        given = self.models + steps
        self.trained += given.astype(np.float64) - self.models
        reference = self.models if self.rounds == 0 else None
        exchange = self.ensemble.exchange(given, reference=reference, **options)
        wires = next(exchange)
        wires.carry(late)
        wires.complete()
        result = drive(exchange)
        for node, report in enumerate(result.reports):
            if report.discarded is not None:
                self.discarded[node] += report.discarded
        self.models, self.rounds = result.vectors, self.rounds + 1
        return result

    def settle(self):
        """From the next round on nobody trains; for how many rounds, until all are alike."""
        self.ensemble.use_method(self.ensemble.method.settled())
        return self.ensemble.plan.graph.settling_rounds

    @property
    def common(self):
        return [state.common for state in self.ensemble.states]

    @property
    def unsent(self):
        return np.array([state.unsent for state in self.ensemble.states])

    def check_alike(self):
        """Members of a cell hold the same bits."""
        for cell in self.ensemble.plan.cells:
            for node in cell[1:]:
                np.testing.assert_array_equal(self.common[node], self.common[cell[0]])

    def check_account(self):
        """One cell: what was trained is in the common model, unsent or thrown away."""
        handed = (self.trained - self.unsent - self.discarded).mean(axis=0)
        np.testing.assert_allclose(self.common[0] - self.start, handed, atol=1e-3)
