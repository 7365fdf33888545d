"""The public names, and that the core needs neither torch nor anything else that is heavy."""

import inspect
import subprocess
import sys

import pytest

import cesar
from cesar.base import errors

NAMES = [
    "AsyncPeer",
    "Peer",
    "Report",
    "DPSGD",
    "BlockTopK",
    "CanaryError",
    "Cells",
    "Cesar",
    "CesarError",
    "ConfigError",
    "DataError",
    "EncodingError",
    "Ensemble",
    "FullSharing",
    "LocalProtocolError",
    "MembershipError",
    "Method",
    "NoiseSpec",
    "PrivacyError",
    "ProtocolError",
    "RandomSubsampling",
    "RemoteProtocolError",
    "RoundResult",
    "SecureAggregation",
    "TopK",
    "__version__",
    "aggregate",
    "theory",
]


def test_public_names():
    """A name that goes breaks somebody's code; a name that comes has to be kept."""
    assert sorted(cesar.__all__) == sorted(NAMES)
    for name in NAMES:
        assert getattr(cesar, name) is not None


def test_public_parameters():
    """What other code passes by name."""
    parameters = {
        cesar.aggregate: [
            "vectors",
            "graph",
            "method",
            "seed",
            "reference",
            "crashes",
            "workers",
            "samples",
            "metrics",
        ],
        cesar.graph.shares.expected_share: ["alpha", "degree", "masking_requirement"],
        cesar.graph.shares.required_alpha: ["share", "degree", "masking_requirement"],
        cesar.TopK: ["alpha", "memory"],
        cesar.RandomSubsampling: ["alpha"],
        cesar.Cesar.paper: ["sparsifier", "masking_requirement", "weights", "dropout"],
        cesar.DPSGD.paper: ["sparsifier", "weights"],
    }
    for called, expected in parameters.items():
        assert list(inspect.signature(called).parameters) == expected
    agreed = {
        "sparsifier",
        "masking_requirement",
        "collusion",
        "ring_bits",
        "coordination",
        "dropout",
    }
    assert agreed <= inspect.signature(cesar.Cesar).parameters.keys()
    assert "ring_bits" in inspect.signature(cesar.SecureAggregation).parameters
    assert "sparsifier" in inspect.signature(cesar.DPSGD).parameters


def test_public_defaults():
    method = cesar.Cesar(sparsifier=cesar.TopK(0.5))
    assert (method.masking_requirement, method.ring_bits) == (1, 32)
    assert (method.coordination, method.dropout) == ("relay", "parameter")
    assert cesar.SecureAggregation().ring_bits == 32
    assert cesar.DPSGD().sparsifier == cesar.FullSharing()


WE_CATCH = {errors.PassphraseError, errors.Refusal, errors.VersionError}
"""Never leave the modules that raise and catch them."""


def all_errors():
    return [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_one_root_catches_every_error(kind):
    assert issubclass(kind, cesar.CesarError)
    public = getattr(cesar, kind.__name__, None) is kind
    assert public is (kind not in WE_CATCH), "an error that users can meet is a public name"


def test_errors_of_input_are_value_errors():
    for kind in (cesar.ConfigError, cesar.DataError, cesar.EncodingError):
        assert issubclass(kind, ValueError)


def test_remote_errors_say_who_when_and_why():
    error = cesar.RemoteProtocolError(3, errors.Reason.DUPLICATE, "it has sent its share already", 7)
    assert (error.peer, error.reason, error.round_) == (3, errors.Reason.DUPLICATE, 7)
    assert str(error) == "frame from node 3 in round 7 refused (duplicate): it has sent its share already"


PROGRAM = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocker())
import networkx as nx, numpy as np
import cesar
method = cesar.Cesar(sparsifier=cesar.TopK(0.5))
result = cesar.aggregate(np.eye(4, 20, dtype=np.float32), nx.complete_graph(4), method, seed=1)
print(result.vectors.shape, result.total_bytes > 0)
print(sorted({blocked!r} & sys.modules.keys()))
"""


def run(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_the_core_runs_without_torch():
    blocked = {"torch", "grpc", "ray", "matplotlib", "scipy", "sklearn", "pandas"}
    code, output, complaints = run(PROGRAM.format(blocked=blocked))
    assert code == 0, complaints
    assert output.splitlines() == ["(4, 20) True", "[]"]


def test_the_blocker_blocks():
    code, _, complaints = run(PROGRAM.format(blocked={"networkx"}))
    assert code != 0
    assert "networkx is blocked" in complaints
