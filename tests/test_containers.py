"""The files for containers and orchestrators say what the package does, and their own tools take them."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import networkx as nx
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from cesar.base.types import __version__
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.ops.status import _Metrics
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


def pins(path):
    """Every line that names a version, with its marker."""
    return set(re.findall(r"^[\w.-]+==[^\\\n]*[^\\\s]", path.read_text(), re.MULTILINE))


def test_the_image_installs_what_is_locked_and_nothing_else():
    """Whoever can answer for the index at build time must not choose what runs at a site."""
    file = (ROOT / "Containerfile").read_text()
    fetching = re.findall(r"-m pip (?:install|wheel) .*", file)
    assert len(fetching) == 4
    for line in fetching:
        assert "--require-hashes -r" in line or ("--no-deps" in line and ("--no-index" in line or "--no-build-isolation" in line))  # fmt: skip
    locked = pins(ROOT / "requirements.lock")
    image = pins(FOLDER / "peers.lock")
    assert {pin.split(" ")[0] for pin in image} <= {pin.split(" ")[0] for pin in locked}, "run make lock"
    names = {pin.partition("==")[0] for pin in image}
    with (ROOT / "pyproject.toml").open("rb") as toml:
        project = tomllib.load(toml)["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["peers"]]
    assert {re.match(r"[\w-]+", word)[0] for word in wanted} <= names
    for lock in (FOLDER / "peers.lock", FOLDER / "build.lock"):
        text = lock.read_text()
        assert all(
            "--hash=sha256:" in part for part in re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]
        )


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


def helm(*arguments, values):
    """Run Helm itself; the package helm-binary puts it beside this interpreter."""
    found = shutil.which("helm", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip("no helm on this machine; the Python package helm-binary has it")
    command = [found, *arguments, "--values", "-"]
    return subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=False)


def rendered(**values):
    done = helm("template", "site-1", str(CHART), "--namespace", "learning", values={**VALUES, **values})
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found is not None]


def test_helm_finds_nothing_wrong_with_the_chart():
    done = helm("lint", str(CHART), "--strict", values=VALUES)
    assert done.returncode == 0, done.stdout
    assert re.findall(r"\[(INFO|WARNING|ERROR)\] (.*)", done.stdout) == [
        ("INFO", "Chart.yaml: icon is recommended")
    ]
    refused = helm("template", "site-1", str(CHART), values={})
    assert refused.returncode != 0
    assert "secret" in refused.stderr
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
