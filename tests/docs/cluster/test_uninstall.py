"""docs/uninstall.md, command by command, on a real API server: the cluster creates pods all the while."""

import base64
import json
import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.local.api import ApiError
from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import card_uuid, kwok_node, our_capacity
from tests.deploy.reading import MANIFESTS, ROOT
from tests.docs.cluster.test_install import without_waiting
from tests.docs.shell import console, run
from tests.support.control_plane import create_namespace
from tests.support.waiting import eventually
from tests.timekeeper.processes import Process, prepared
from timekeeper.core import names

pytestmark = pytest.mark.cluster

PAGE = (ROOT / "docs" / "uninstall.md").read_text()
(SAVE_BEFORE_UPGRADE,) = (
    each for each in console((ROOT / "docs" / "upgrade.md").read_text()) if "bursar save" in each
)
BACK = PAGE.partition("\n## Come back")[2].partition("\n## What stays")[0]
NODE = {
    "metadata": {
        "name": "gpu-1",
        "labels": {"bursar.node-restriction.kubernetes.io/gpu-node": "true"},
        "annotations": {names.INVENTORY: "{}", names.HOLDERS: "{}", names.CORDONED_CARDS: "GPU-1"},
    },
}
AMOUNTS = our_capacity(1, 81_920)
STATUS = {"status": {"capacity": {"cpu": "8", **AMOUNTS}, "allocatable": {"cpu": "8", **AMOUNTS}}}

ADMINISTRATOR = ROOT / "deploy" / "samples" / "administrator.yaml"
BUDGETS = {"bursar.dev/budgets": "true"}
CONFIG_MAPS = {
    "bursar-settings": ({"_settings": "settleAfter: 2s\nlookahead: 0s\n"}, None),
    "bursar-budgets": ({"team-a": "gpuHours: 1", "_group.research": "gpuHours: 5\nperiod: month\n"}, None),
    "astronomy-budgets": ({"astronomy": "gpuHours: 10\nperiod: month\n# two lines:  \n"}, BUDGETS),
    "physics-budgets": ({"physics": 'gpuHours: "3"\ngroup: research'}, BUDGETS | {"team": "physics"}),
}
OURS = ("bursar.dev/", "bursar.node-restriction.kubernetes.io/")
PASSING = (names.HOLDERS,)  # the node's agent reports it anew
BALANCE = ("namespace", "granted", "posted", "pending", "remaining", "standing")
LASTING = {"entries", "grants", "sessions", "postings", "days"}


def steps() -> dict[str, str]:
    """Each numbered step's title, and the commands that it has people type in the cluster."""
    parts = re.split(r"^## \d\. ", PAGE.partition("\n## Come back")[0], flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0]: "\n".join(console(part)) for part in parts}


def refusal(cp: ControlPlane, name: str, limits: dict[str, str]) -> str:
    """Why the API server does not create a pod; empty where it does."""
    container = {"name": "main", "image": "example", "resources": {"limits": limits}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container]},
    }
    done = cp.kubectl("create", "-f", "-", input=json.dumps(pod))
    return done.stderr if done.returncode else ""


def everything(cp: ControlPlane) -> list[str]:
    """Every object of the cluster, but Events, that has our name or label, as `kind/name`."""
    kinds = cp.kubectl("api-resources", "--verbs=list", "-o", "name").stdout.split()
    listed = ",".join(kind for kind in kinds if not kind.startswith("events"))
    found: dict[str, Any] = json.loads(cp.kubectl("get", "-A", "-o", "json", listed).stdout)
    return [
        f"{each['kind']}/{each['metadata']['name']}"
        for each in found["items"]
        if "bursar" in each["metadata"]["name"]
        or "bursar" in each["metadata"].get("namespace", "")
        or "app.kubernetes.io/part-of" in each["metadata"].get("labels", {})
    ]


@pytest.fixture
def folder(control_plane: ControlPlane, tmp_path: Path) -> Path:
    """Where the commands are typed: with the repository's files, the plugin, and a kubectl that runs here
    what is to run in the timekeeper's pod (there is no kubelet). `BURSAR_DATABASE` stands for its volume."""
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "pods").mkdir()
    program = f"PYTHONPATH={ROOT} exec {sys.executable} -m"
    in_pod = f'while [ "$1" != -- ]; do shift; done; shift 2; {program} timekeeper "$@"'
    kubectl = f'case " $* " in *" exec "*) {in_pod};; esac\nexec {control_plane.kubectl_path} "$@"'
    plugin = f'{program} timekeeper.cli.main "$@"'
    for name, script in (("kubectl", kubectl), ("kubectl-bursar", plugin)):
        (tmp_path / "pods" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "pods" / name).chmod(0o755)
    return tmp_path


def typed(cp: ControlPlane, folder: Path, timekeeper: Process, commands: str) -> str:
    """Types commands beside this timekeeper; none waits for a pod, for there is no kubelet."""
    variables = (
        f"export PATH={folder}/pods:$PATH BURSAR_DATABASE=sqlite:///{timekeeper.database}"
        f" BURSAR_SERVER=https://127.0.0.1:{timekeeper.port} BURSAR_CA_FILE={timekeeper.folder}/ca.crt\n"
    )
    return run(cp, variables + without_waiting(commands), folder)


@contextmanager
def timekeeping(cp: ControlPlane, folder: Path) -> Iterator[Process]:
    """A timekeeper whose volume is this new folder, not started."""
    folder.mkdir()
    with prepared(folder, cp.admin_kubeconfig) as timekeeper:
        yield timekeeper


def use_cards(cp: ControlPlane) -> None:
    """A node with cards, and a pod that has held half of one for a second and whose end is proved."""
    cp.api.call("POST", "/api/v1/nodes", kwok_node("cards", cards=1, memory_mib=81_920))
    pods = create_namespace(cp, "astronomy")
    container = {
        "name": "main",
        "image": "example",
        "resources": {"limits": {"bursar.dev/gpu-percent": "50"}},
    }
    pod = {
        "metadata": {"name": "train", "annotations": {"local.bursar.dev/run-for": "1s"}},
        "spec": {"restartPolicy": "Never", "schedulerName": "nobody", "containers": [container]},
    }
    uid = cp.api.call("POST", pods, pod)["metadata"]["uid"]
    card = {"uuid": card_uuid("cards", 0), "index": 0, "share_milli": 500, "memory_mib": 40_960}
    devices = json.dumps({"version": 1, "containers": {"main": [card]}})
    metadata = {"name": "train", "uid": uid, "annotations": {"bursar.dev/devices": devices}}
    binding = {"metadata": metadata, "target": {"kind": "Node", "name": "cards"}}

    def is_bound() -> bool:
        """The API server goes on judging by policies for a moment after they were deleted."""
        try:
            cp.api.call("POST", f"{pods}/train/binding", binding)
        except ApiError as refused:
            if "bursar-bindings" not in str(refused):
                raise
            return False
        return True

    eventually(is_bound, "the policies of an earlier test to be forgotten")
    eventually(lambda: cp.api.call("GET", f"{pods}/train")["status"]["phase"] == "Succeeded")


def config_maps(cp: ControlPlane) -> dict[str, Any]:
    """Data and labels of those that Bursar reads."""
    found = cp.api.call("GET", "/api/v1/namespaces/bursar-system/configmaps")["items"]
    return {
        each["metadata"]["name"]: (each["data"], each["metadata"].get("labels"))
        for each in found
        if each["metadata"]["name"] in CONFIG_MAPS
    }


def marks(cp: ControlPlane) -> dict[str, dict[str, str]]:
    """Our labels and annotations on nodes and namespaces, but those that the node's agent writes."""
    found = [
        *cp.api.call("GET", "/api/v1/nodes")["items"],
        *cp.api.call("GET", "/api/v1/namespaces")["items"],
    ]
    of_all = {each["metadata"]["name"]: every_mark(each["metadata"]) for each in found}
    return {name: ours for name, ours in of_all.items() if ours and "bursar" not in name}


def every_mark(metadata: dict[str, Any]) -> dict[str, str]:
    both = {**metadata.get("labels", {}), **metadata.get("annotations", {})}
    return {key: text for key, text in both.items() if key.startswith(OURS) and key not in PASSING}


def secret_of(file: Path) -> str:
    return base64.b64decode(yaml.safe_load(file.read_text())["data"]["key"]).decode()


def has_postings(database: Path) -> bool:
    with closing(sqlite3.connect(database)) as connection:
        return bool(connection.execute("SELECT 1 FROM postings").fetchone())


def accounts(cp: ControlPlane, folder: Path, timekeeper: Process) -> tuple[Any, Any]:
    """Balances and grants, as the API answers them."""
    said = typed(
        cp, folder, timekeeper, "kubectl bursar budget -A -o json; echo ---; kubectl bursar grants -A -o json"
    )
    balances, grants = map(json.loads, said.split("---"))
    return [{key: each[key] for key in BALANCE} for each in balances["items"]], grants


def lasting_rows(ledger: Path) -> list[Any]:
    """The rows of an exported ledger that say what was granted and charged."""
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    return [line for line in lines if line.get("table") in LASTING]


@pytest.mark.soak
def test_the_manifests_alone_can_be_deleted_as_they_were_applied_and_stop_no_pod(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    half = {"bursar.dev/gpu-percent": "50"}
    run(control_plane, "kubectl apply --server-side -f deploy/manifests", tmp_path)
    assert refusal(control_plane, "refused", half) != ""

    run(control_plane, "kubectl delete -f deploy/manifests", tmp_path)

    assert refusal(control_plane, "gpu-alone", half) == ""
    assert everything(control_plane) == []


@pytest.mark.soak
def test_after_the_namespace_alone_was_deleted_the_first_step_makes_pods_creatable_again(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    half = {"bursar.dev/gpu-percent": "50"}
    run(control_plane, "kubectl apply --server-side -f deploy/manifests", tmp_path)
    run(control_plane, "kubectl delete namespace bursar-system", tmp_path)
    assert 'failed calling webhook "govern.bursar.dev"' in refusal(control_plane, "refused-again", half)

    run(control_plane, next(iter(steps().values())), tmp_path)

    assert refusal(control_plane, "gpu-again", half) == ""
    run(control_plane, "kubectl delete -f deploy/manifests --ignore-not-found", tmp_path)
    assert everything(control_plane) == []


def test_uninstalled_by_the_page_pods_are_created_after_each_step_and_what_was_saved_comes_back_equal(
    control_plane: ControlPlane, folder: Path
) -> None:
    use_cards(control_plane)
    applied = control_plane.kubectl("apply", "--server-side", "-f", str(MANIFESTS), "-f", str(ADMINISTRATOR))
    assert applied.returncode == 0, applied.stderr
    for name, (data, labels) in CONFIG_MAPS.items():
        body = {"metadata": {"name": name, "labels": labels}, "data": data}
        control_plane.api.call("POST", "/api/v1/namespaces/bursar-system/configmaps", body)
    secret = {"metadata": {"name": "proxy"}, "stringData": {"key": "secret-of-the-proxy"}}
    control_plane.api.call("POST", "/api/v1/namespaces/bursar-system/secrets", secret)
    control_plane.api.call("POST", "/api/v1/nodes", NODE)
    patch = ("patch", "node", "gpu-1", "--subresource", "status", "--type", "merge", "-p", json.dumps(STATUS))
    assert control_plane.kubectl(*patch).returncode == 0
    neighbour = "kubectl label namespace astronomy example.com/bursar=stays bursar.dev/exempt=true"
    run(control_plane, neighbour, folder)
    half = {"bursar.dev/gpu-percent": "50"}
    assert 'failed calling webhook "govern.bursar.dev"' in refusal(control_plane, "before", half)
    with timekeeping(control_plane, folder / "volume") as timekeeper:
        timekeeper.start_ready()
        timekeeper.wait("the charge", lambda: has_postings(timekeeper.database))
        typed(control_plane, folder, timekeeper, "kubectl bursar grant astronomy 2 --reason 'paper deadline'")
        before = config_maps(control_plane), marks(control_plane)
        had = accounts(control_plane, folder, timekeeper)
        secrets = typed(control_plane, folder, timekeeper, "kubectl bursar save private --secrets -o json")
        missing = "BURSAR_DATABASE=sqlite:////nowhere kubectl bursar save partly 2>&1 || echo code $?"
        partly = typed(control_plane, folder, timekeeper, missing).splitlines()

        for number, (title, commands) in enumerate(steps().items()):
            if title.startswith("Remove the workloads"):  # the kubelet ends the pod, the volume goes
                assert timekeeper.end() == 0
            typed(control_plane, folder, timekeeper, commands)

            assert refusal(control_plane, f"gpu-{number}", half) == "", title
            assert refusal(control_plane, f"plain-{number}", {}) == "", title

    (proxy,) = (each for each in json.loads(secrets)["items"] if each["what"] == "Secret proxy")
    assert (folder / "private" / proxy["file"]).stat().st_mode & 0o777 == 0o600
    assert "secret-of-the-proxy" in secret_of(folder / "private" / proxy["file"])
    assert partly[-2:] == ["Error: not everything was saved: ledger; partly/README.txt says why", "code 1"]
    assert "there is no file /nowhere" in (folder / "partly" / "README.txt").read_text()
    assert not (folder / "partly" / "ledger.jsonl").exists()
    assert everything(control_plane) == []
    node = control_plane.api.call("GET", "/api/v1/nodes/gpu-1")
    assert node["status"]["capacity"] == node["status"]["allocatable"] == {"cpu": "8"}
    assert marks(control_plane) == {}
    assert "stays" in run(control_plane, "kubectl get namespace astronomy --show-labels", folder)
    saved = folder / "saved"
    assert {file.stat().st_mode & 0o777 for file in saved.iterdir()} == {0o600}
    assert "secret-of-the-proxy" not in "".join(file.read_text() for file in saved.iterdir())

    with timekeeping(control_plane, folder / "new-volume") as timekeeper:
        typed(control_plane, folder, timekeeper, "\n".join(console(BACK)))
        applied = control_plane.kubectl(
            "apply", "--server-side", "-f", str(MANIFESTS), "-f", str(ADMINISTRATOR)
        )
        assert applied.returncode == 0, applied.stderr
        timekeeper.start_ready()
        assert (config_maps(control_plane), marks(control_plane)) == before
        assert accounts(control_plane, folder, timekeeper) == had
        typed(control_plane, folder, timekeeper, SAVE_BEFORE_UPGRADE)

    assert lasting_rows(folder / "before-upgrade/ledger.jsonl") == lasting_rows(saved / "ledger.jsonl")
    assert {line["table"] for line in lasting_rows(saved / "ledger.jsonl")} == LASTING
