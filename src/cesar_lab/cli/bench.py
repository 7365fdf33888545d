"""`cesar bench`: measurements against a floor from the same run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from cesar.base.errors import ConfigError
from cesar.base.seeds import SeedTree
from cesar.cli.options import AsJson, DataDir, Degree, Masks, Nodes, Rounds, Share
from cesar.cli.output import console, notices, show
from cesar.cli.process import need
from cesar.graph import named as graphs
from cesar.methods import Method
from cesar_lab.bench import rounds as measured
from cesar_lab.show.table import Table

app = typer.Typer(no_args_is_help=True, help="Measure, against a floor from the same run.")


class MethodName(StrEnum):
    """What `bench` can run."""

    CESAR = "cesar"
    SECAGG = "secagg"
    DPSGD = "dpsgd"


Params = Annotated[int, typer.Option(min=1, help="Parameters of a model (d).")]
RingBits = Annotated[
    int | None,
    typer.Option(help="Bits of a value on the wire: 16, 20, 24 or 32; default 16 with cells and 32 without."),
]
SparsifierName = Annotated[str, typer.Option("--sparsifier", help="random or topk.")]
Seed = Annotated[int, typer.Option(help="Of the graph, the models and the keys.")]
CellSize = Annotated[
    int | None,
    typer.Option(
        "--cells", min=2, help="Measure cells of at least this number of members; --share 1 hands all in."
    ),
]
Against = Annotated[
    float | None,
    typer.Option(min=0.0, max=1.0, help="What D-PSGD shares; default what the method was measured to share."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """What the methods to be measured have in common."""

    sparsifier: str
    share: float
    degree: int
    size: int
    ring_bits: int | None

    def cesar(self, *, masks: int | None = None, paper: bool = False) -> Method:
        """CESAR at this share."""
        hiding = {"masks": masks, "paper": paper, **self._ring}
        return self._build({"name": "cesar", "sparsifier": self.sparsifier, "share": self.share, **hiding})

    def dpsgd(self, share: float, *, paper: bool = False) -> Method:
        """D-PSGD with the same sparsifier."""
        sparse = {"sparsifier": self.sparsifier, "share": share} if share < 1 else {}
        return self._build({"name": "dpsgd", "paper": paper, **sparse})

    def secagg(self) -> Method:
        """Secure aggregation of everything."""
        return self._build({"name": "secagg", **self._ring})

    def cells(self, size: int) -> Method:
        """Cells that hand this share in: everything, at random, or by blocks."""
        sparse = {"sparsifier": self.sparsifier, "share": self.share} if self.share < 1 else {}
        return self._build({"name": "cells", "size": size, **sparse, **self._ring})

    @property
    def _ring(self) -> dict[str, int]:
        return {} if self.ring_bits is None else {"ring_bits": self.ring_bits}

    def _build(self, tables: dict[str, object]) -> Method:
        need("lab", "pydantic")
        from cesar.methods.settings import MethodSection, check  # noqa: PLC0415  (the command line loads without pydantic)

        return check(MethodSection, tables).build(self.degree, size=self.size)


@app.command("round")
def bench_round(
    nodes: Nodes = 48,
    degree: Degree = 6,
    params: Params = 89834,
    method: MethodName = MethodName.CESAR,
    sparsifier: SparsifierName = "random",
    share: Share = 0.30,
    masks: Masks = None,
    cells: CellSize = None,
    ring_bits: RingBits = None,
    rounds: Rounds = 5,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Time a whole round of all nodes against the keystream alone, and cells against D-PSGD at the same share.

    The floor makes one 32-bit keystream word per parameter for every (receiver, sender, partner) of the
    graph, with the cipher alone, on the same cores. With --cells, rounds of D-PSGD are timed in turns with these, and
    `to beside` is the ratio of the two.
    """
    graph = graphs.numbered(nodes, degree, seed)
    settings = _Settings(sparsifier=sparsifier, share=share, degree=degree, size=params, ring_bits=ring_bits)
    chosen, beside = _with_neighbour(settings, method, masks, cells)
    with notices.status("starting") as status:
        result = measured.bench_round(
            graph, chosen, params, rounds=rounds, beside=beside, seed=seed, progress=status.update
        )
    fields = asdict(result)
    if not as_json:
        fields = {name: value for name, value in fields.items() if value is not None}
        sent = fields.pop("bytes_per_node")
        fields |= {f"{name} bytes per node": f"{count:,.0f}" for name, count in sent.items()}
        fields["peak_rss_bytes"] = f"{result.peak_rss_bytes:,}"
    show(f"{nodes} nodes, degree {degree}, {params:,} parameters", fields, as_json=as_json)


def _with_neighbour(
    settings: _Settings, name: MethodName, masks: int | None, cells: int | None
) -> tuple[Method, Method | None]:
    """The method to time, and D-PSGD beside it if it has cells."""
    if cells is not None:
        if masks is not None:
            raise ConfigError("cells decide how many masks a value carries; leave --masks out")
        return settings.cells(cells), settings.dpsgd(settings.share)
    match name:
        case MethodName.CESAR:
            return settings.cesar(masks=masks), None
        case MethodName.SECAGG:
            return settings.secagg(), None
        case MethodName.DPSGD:
            return settings.dpsgd(settings.share), None


@app.command("peers")
def bench_peers(
    peers: Annotated[int, typer.Option(min=3, help="How many peers.")] = 4,
    params: Annotated[int, typer.Option(min=1, help="d, the number of parameters.")] = 1_000_000,
    cells: Annotated[
        int, typer.Option(min=0, help="The size of cells; 0 for CESAR, all peers neighbours of one another.")
    ] = 4,
    share: Annotated[float, typer.Option(min=0.0, max=1.0, help="The fraction that CESAR shares.")] = 0.30,
    rounds: Rounds = 5,
    latency: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            help="Milliseconds of a trip from peer to peer: count how many trips a round takes. With root, iproute2 and netem, or through a relay.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Time real peers over mutual TLS on this machine, against the bytes and the keystream alone.

    With --latency peers are in network namespaces of their own, with a delay on every line, and only trips are counted: of one cell and a small
    model (--params 1000), from the moment when its slowest member is done. Where there is no netem a relay on loopback delays what they say.
    """
    if latency is not None:
        _bench_latency(peers, params, cells, rounds, latency, as_json=as_json)
        return
    from cesar_lab.bench.peers import bench_peers as measure  # noqa: PLC0415  (only this command needs gRPC)

    with notices.status("making a network") as status:
        result = measure(
            peers, params, cells=cells or None, share=share, rounds=rounds, progress=status.update
        )
    show(
        f"{peers} peers, {params:,} parameters",
        asdict(result),
        as_json=as_json,
        shown=lambda value: "unknown" if value is None else f"{value:,.3f}",
    )


def _bench_latency(
    peers: int, params: int, cells: int, rounds: int, latency: float, *, as_json: bool
) -> None:
    from cesar_lab.bench.latency import bench_latency  # noqa: PLC0415

    if not cells:
        raise ConfigError("--latency counts the trips of a cell; leave --cells 0 out")
    with notices.status("making a network") as status:
        result = bench_latency(
            peers, params, cells=cells, rounds=rounds, latency=latency / 1000, progress=status.update
        )
    show(
        f"{peers} peers, {params:,} parameters, {latency:g} ms from peer to peer",
        asdict(result),
        as_json=as_json,
        shown=lambda value: value if isinstance(value, str) else f"{value:,.3f}",
    )


@app.command("bytes")
def bench_bytes(
    nodes: Nodes = 48,
    degree: Degree = 6,
    params: Params = 89834,
    sparsifier: SparsifierName = "topk",
    share: Share = 0.30,
    masks: Masks = None,
    cells: CellSize = None,
    against: Against = None,
    ring_bits: RingBits = None,
    paper: Annotated[bool, typer.Option("--paper", help="The paper's own exchange on both sides.")] = False,
    count: Annotated[int, typer.Option("--graphs", min=1, help="Random graphs to average over.")] = 1,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Compare what CESAR or cells send with D-PSGD at the same measured share, on independent selections."""
    settings = _Settings(sparsifier=sparsifier, share=share, degree=degree, size=params, ring_bits=ring_bits)
    with notices.status("counting") as status:
        result = measured.bench_bytes(
            [graphs.numbered(nodes, degree, seed + k) for k in range(count)],
            settings.cesar(masks=masks, paper=paper) if cells is None else settings.cells(cells),
            lambda shared: settings.dpsgd(shared if against is None else against, paper=paper),
            params,
            seed=seed,
            progress=status.update,
        )
    if as_json:
        typer.echo(json.dumps(asdict(result)))
        return
    sent = {name: (count, result.dpsgd[name]) for name, count in result.cesar.items()}
    sent["all"] = (sum(result.cesar.values()), sum(result.dpsgd.values()))
    table = Table(
        heads=("", _called(cells), "D-PSGD"),
        rows=tuple((name, *(f"{bytes_:,.0f}" for bytes_ in both)) for name, both in sent.items()),
        title=f"Bytes that a node sends per round, {count} graph(s)",
    )
    console.print(table.terminal())
    low, high = min(result.ratios), max(result.ratios)
    console.print(f"share {result.shared:.4f}, ratio [bold]{result.ratio:.4f}[/] ({low:.4f} to {high:.4f})")


def _called(cells: int | None) -> str:
    return "CESAR" if cells is None else f"cells of {cells}"


DatasetName = Annotated[str, typer.Option(help="Whose samples to train on.")]
ModelName = Annotated[str, typer.Option(help="Which model.")]
Steps = Annotated[int, typer.Option(min=1, help="SGD steps per node and round.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Samples per step.")]


@app.command("overhead")
def bench_overhead(
    dataset: DatasetName = "cifar10",
    model: ModelName = "lenet",
    nodes: Nodes = 48,
    degree: Degree = 6,
    method: MethodName = MethodName.CESAR,
    sparsifier: SparsifierName = "random",
    share: Share = 0.30,
    masks: Masks = None,
    cells: CellSize = None,
    against: Against = None,
    ring_bits: RingBits = None,
    steps: Steps = 6,
    batch_size: BatchSize = 8,
    rounds: Rounds = 9,
    seed: Seed = 0,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Time whole rounds, training and protocol, against D-PSGD and against the bare PyTorch loop.

    The three take turns in one process, so that noise hits all alike. D-PSGD has the same sparsifier and shares what the
    method was measured to share. A round is what training took both in a turn, and the own protocol; ratios are medians of the
    turns, the spread is from the lower to the upper quartile.
    """
    from cesar.peer.api.flat import Layout  # noqa: PLC0415
    from cesar.sim.faults import Faults  # noqa: PLC0415
    from cesar_lab.bench.overhead import bench_overhead  # noqa: PLC0415
    from cesar_lab.data import datasets, partition  # noqa: PLC0415
    from cesar_lab.learn import models  # noqa: PLC0415
    from cesar_lab.learn.training import Sgd  # noqa: PLC0415
    from cesar_lab.run.host import Setup  # noqa: PLC0415

    data = datasets.load(dataset, data_dir)
    module, graph = models.build(model, data, seed=seed), graphs.numbered(nodes, degree, seed)
    settings = _Settings(
        sparsifier=sparsifier,
        share=share,
        degree=degree,
        size=Layout.of(module).size,
        ring_bits=ring_bits,
    )
    chosen, _ = _with_neighbour(settings, method, masks, cells)
    setup = partial(
        Setup,
        data=data,
        module=module,
        parts=partition.iid(len(data.train), nodes, SeedTree(seed).generator("partition")),
        sgd=Sgd(learning_rate=0.01, batch_size=batch_size, steps=steps),
        graph=lambda _: graph,
        dynamic=False,
        faults=Faults(),
        seed=seed,
    )
    with notices.status("starting") as status:
        result = bench_overhead(
            lambda used: setup(method=used),
            chosen,
            lambda shared: settings.dpsgd(shared if against is None else against),
            rounds=rounds,
            progress=status.update,
        )
    fields = asdict(result)
    if not as_json:
        for name in ("method", "dpsgd", "bare"):
            fields |= {f"{name}: {part}": taken for part, taken in fields.pop(name).items() if taken}
    show(f"{nodes} nodes, {model} on {dataset}", fields, as_json=as_json, shown=_ratio_words)


def _ratio_words(value: float | tuple[float, float]) -> str:
    return " to ".join(f"{one:.3f}" for one in (value if isinstance(value, tuple) else (value,)))


@app.command("training")
def bench_training(
    dataset: DatasetName = "cifar10",
    model: ModelName = "lenet",
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes.")] = 48,
    steps: Steps = 6,
    batch_size: BatchSize = 8,
    rounds: Rounds = 5,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Time local training against a bare PyTorch loop over the same nodes and batches."""
    from cesar_lab.bench.training import bench_training  # noqa: PLC0415
    from cesar_lab.data import datasets, partition  # noqa: PLC0415
    from cesar_lab.learn import models  # noqa: PLC0415
    from cesar_lab.learn.training import Sgd  # noqa: PLC0415

    data = datasets.load(dataset, data_dir)
    parts = partition.iid(len(data.train), nodes, SeedTree(0).generator("partition"))
    sgd = Sgd(learning_rate=0.01, batch_size=batch_size, steps=steps)
    with notices.status("starting") as status:
        module = models.build(model, data, seed=0)
        result = bench_training(data, module, parts, sgd, rounds=rounds, progress=status.update)
    title = f"{nodes} nodes, {model} on {dataset}"
    show(title, asdict(result), as_json=as_json, shown=lambda value: f"{value:.3f}")
