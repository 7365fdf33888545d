"""The paper's own figures, as printed, each with its place. Nothing here is computed or measured by us."""

from __future__ import annotations

from dataclasses import dataclass

ROUNDS = 12_000
"""CIFAR-10: 600 epochs of 20 rounds. Gigabytes are those of a node in all rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A line of Table III: CESAR first, then D-PSGD. Accuracies in %, data in GB, times as HH:MM."""

    shared: float
    accuracy: tuple[float, float]
    gigabytes: tuple[float, float]
    time: tuple[str, str]

    @property
    def ratio(self) -> float:
        """CESAR's data to D-PSGD's."""
        return self.gigabytes[0] / self.gigabytes[1]


SETTINGS = {
    "topk-3-30": Setting(
        shared=31.02, accuracy=(71.88, 71.58), gigabytes=(5.22, 4.41), time=("03:19", "02:49")
    ),
    "topk-3-50": Setting(
        shared=50.48, accuracy=(72.50, 72.29), gigabytes=(7.90, 7.03), time=("03:30", "02:53")
    ),
    "topk-6-30": Setting(
        shared=30.13, accuracy=(72.42, 72.40), gigabytes=(11.56, 8.58), time=("03:44", "02:35")
    ),
    "topk-6-50": Setting(
        shared=49.67, accuracy=(73.12, 73.09), gigabytes=(17.28, 13.83), time=("04:17", "02:44")
    ),
    "random-3-30": Setting(
        shared=30.00, accuracy=(48.64, 49.06), gigabytes=(4.34, 3.92), time=("02:58", "02:40")
    ),
    "random-3-50": Setting(
        shared=50.00, accuracy=(52.54, 53.00), gigabytes=(7.01, 6.53), time=("03:04", "02:41")
    ),
    "random-6-30": Setting(
        shared=30.00, accuracy=(50.24, 50.38), gigabytes=(8.69, 7.85), time=("03:06", "02:44")
    ),
    "random-6-50": Setting(
        shared=50.00, accuracy=(55.44, 55.62), gigabytes=(14.04, 13.07), time=("03:21", "02:45")
    ),
}
"""Table III, by sparsifier, degree and percent shared."""

NODES = {48: (9.07, 2.25), 96: (9.07, 2.39), 192: (9.06, 2.48), 288: (9.05, 2.49)}
"""Appendix A: nodes → GB of parameters with their indices, GB of coordination."""

DEGREE = {3: (0.63, 5.93), 6: (2.77, 26.87), 9: (5.49, 53.48), 12: (7.77, 75.16)}
"""Appendix B: degree → GB of coordination, mean size of View2."""

DROPOUTS = {0: (72.42, 11.58, "04:23"), 10: (72.06, 11.19, "05:04"), 20: (71.51, 10.34, "05:18")}
"""Fig. 8 and its text: percent of crashes → accuracy in %, GB, time; without the add-on where nobody crashes."""

MASKING_SHARED = {("topk", 1): 30.13, ("topk", 3): 32.13}
"""Fig. 6 and its text: percent shared by (sparsifier, s)."""
MASKING_MORE_BYTES = 9.1
"""Percent more data with TopK from s = 1 to s = 3."""

COLLUSION = {9: 1.45, 13: 0.0}
"""Fig. 5b: percent of graphs at risk by s, with 15 adversaries among 100 nodes of degree 25."""

MEMBERSHIP = {"everything": 0.24, "topk": 0.17, "random": 0.11}
"""Fig. 7: how much lower the area under the ROC curve is for the mean of all neighbours than for one model."""

ROUGE_L = {"CESAR": 14.72, "D-PSGD": 14.73}
"""XSum, Section IV-B1."""

APPROACHES = {
    "Standard DL": (False, False),
    "Standard DL + sparsification": (True, False),
    "Noise-based": (False, True),
    "Secure aggregation": (False, True),
    "CESAR": (True, True),
}
"""Table I: (communication-efficient, private)."""
