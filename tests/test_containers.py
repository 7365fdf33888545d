"""The files for containers and orchestrators say what the package does, and their own tools take them."""

import asyncio
import json
import re
from pathlib import Path

import networkx as nx
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from cesar.peer.runtime import AsyncPeer
from cesar.peer.status import _Metrics
from cesar.types import __version__
from support.lan import make_network

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "containers"
CHART = FOLDER / "chart"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
VALUES = {"secret": "peer-1", "arguments": ["--set", "epochs=2"], "state": {"storageClass": "fast"}}


def test_every_peer_of_the_compose_file_is_locked_up_and_watched():
    services = COMPOSE["services"]
    peers = {name for name in services if name.startswith("peer-")}
    assert len(peers) == 4
    for name in (*peers, "setup"):
        service = services[name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (FOLDER / source).is_file()
    (job,) = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    assert set(job["static_configs"][0]["targets"]) == {f"{name}:7500" for name in peers}


def test_nothing_but_the_package_gets_into_the_image():
    kept = [line[1:] for line in (ROOT / ".containerignore").read_text().splitlines() if line.startswith("!")]
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", (ROOT / "Containerfile").read_text(), re.MULTILINE)
    assert sorted(" ".join(copied).split()) == sorted(kept)
    assert "\n*\n" in (ROOT / ".containerignore").read_text()


def test_the_dashboard_asks_for_what_peers_count(tmp_path):
    folder = make_network(tmp_path / "net", nx.complete_graph(3)).folder

    async def counted():
        registry = CollectorRegistry()
        registry.register(_Metrics(AsyncPeer.load(folder / "peer-0")))
        return generate_latest(registry).decode()

    text = asyncio.run(counted())
    known = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    panels = json.loads((FOLDER / "grafana" / "cesar.json").read_text())["panels"]
    asked = {
        name
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"cesar_\w+", target["expr"])
    }
    assert len(asked) >= 8
    assert asked <= known


def rendered(**values):
    helm = pytest.importorskip("helm_python", reason="Helm is in the package helm-python-sdk")
    with helm.Chart.load(CHART) as chart:
        texts = chart.render({**VALUES, **values}, name="site-1", namespace="learning")
    documents = [
        part for name, text in texts.items() if name.endswith(".yaml") for part in text.split("\n---")
    ]
    return [
        found for part in documents if isinstance(found := yaml.safe_load(part), dict) and "kind" in found
    ]


def test_helm_finds_nothing_wrong_with_the_chart():
    helm = pytest.importorskip("helm_python", reason="Helm is in the package helm-python-sdk")
    found = helm.lint(CHART, VALUES, strict=True)
    assert found["errors"] == []
    assert [message["error"] for message in found["messages"]] == ["icon is recommended"]
    with pytest.raises(helm.HelmError, match="secret"), helm.Chart.load(CHART) as chart:
        chart.render({}, name="site-1")
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__


def test_the_chart_renders_what_kubernetes_takes():
    validate = pytest.importorskip("kubernetes_validate", reason="the schemas are in kubernetes-validate")
    objects = rendered()
    assert sorted(found["kind"] for found in objects) == [
        "NetworkPolicy",
        "Service",
        "Service",
        "StatefulSet",
    ]
    for found in objects:
        validate.validate(found, "1.31", strict=True)
    assert "NetworkPolicy" not in {found["kind"] for found in rendered(networkPolicy={"enabled": False})}


def test_the_chart_keeps_a_peer_locked_up():
    (peer,) = (found for found in rendered() if found["kind"] == "StatefulSet")
    pod = peer["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    for container in (*pod["containers"], *pod["initContainers"]):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["image"] == f"cesar:{__version__}"
    (container,) = pod["containers"]
    assert container["args"] == [
        "peer",
        "run",
        "/peer",
        "--train",
        "train:train",
        "--resume",
        "--log-json",
        "--set",
        "epochs=2",
    ]
    assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()
    mounted = {mount["name"]: mount.get("readOnly", False) for mount in container["volumeMounts"]}
    assert mounted == {"peer": True, "state": False, "tmp": False}  # keys are only read
