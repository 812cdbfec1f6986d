"""`kubectl bursar scheduler`: a manifest as kubeadm 1.37.2 wrote it is patched and restored."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from timekeeper.cli.main import cli

KUBEADM = (
    Path(__file__).parents[1] / "kubeadm-kube-scheduler.yaml"
).read_text()  # compared by a cluster test
URL = "--extender-url=http://127.0.0.1:8445"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host with the manifest in the kubelet's folder."""
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "kube-scheduler.yaml").write_text(KUBEADM)
    return tmp_path


def typed(host: Path, command: str, *flags: str) -> Result:
    """A command about the manifest of the host."""
    manifest = host / "manifests" / "kube-scheduler.yaml"
    return CliRunner().invoke(cli, ["scheduler", command, str(manifest), f"--folder={host}/bursar", *flags])


def manifest(host: Path) -> str:
    return (host / "manifests" / "kube-scheduler.yaml").read_text()


def configuration(host: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(
        (host / "bursar" / "kube-scheduler-configuration.yaml").read_text()
    )
    return found


def test_the_patch_adds_the_configuration_and_leaves_everything_else(host: Path) -> None:
    shown = typed(host, "patch", URL)

    assert shown.exit_code == 0, shown.output
    was, now = yaml.safe_load(KUBEADM), yaml.safe_load(manifest(host))
    container, before = now["spec"]["containers"][0], was["spec"]["containers"][0]
    added = f"--config={host}/bursar/kube-scheduler-configuration.yaml"
    own = "--kubeconfig=/etc/kubernetes/scheduler.conf"
    assert container.pop("command") == [*(each for each in before.pop("command") if each != own), added]
    folder = {"mountPath": f"{host}/bursar", "name": "bursar-scheduler", "readOnly": True}
    assert container.pop("volumeMounts") == [*before.pop("volumeMounts"), folder]
    volume = {"hostPath": {"path": f"{host}/bursar", "type": "Directory"}, "name": "bursar-scheduler"}
    assert now["spec"].pop("volumes") == [*was["spec"].pop("volumes"), volume]
    assert now == was

    written = configuration(host)
    assert written["clientConnection"]["kubeconfig"] == "/etc/kubernetes/scheduler.conf"
    assert [each["schedulerName"] for each in written["profiles"]] == [
        "default-scheduler",
        "bursar-scheduler",
    ]
    assert [each["urlPrefix"] for each in written["extenders"]] == ["http://127.0.0.1:8445"]


def test_the_difference_is_shown_and_a_dry_run_writes_nothing(host: Path) -> None:
    shown = typed(host, "patch", URL, "--dry-run").output

    lines = shown.splitlines()
    assert "-    - --kubeconfig=/etc/kubernetes/scheduler.conf" in lines
    assert f"+    - --config={host}/bursar/kube-scheduler-configuration.yaml" in lines
    assert "+  - schedulerName: bursar-scheduler" not in lines  # PyYAML's lists have no margin at the top
    assert "+- schedulerName: bursar-scheduler" in lines
    changed = [line for line in lines if line[:1] in "+-" and "--config" not in line]
    assert len([line for line in changed if line.startswith("-") and line[1:2] != "-"]) == 1
    assert [each.name for each in host.iterdir()] == ["manifests"]
    assert manifest(host) == KUBEADM


def test_undo_restores_every_byte_and_leaves_nothing(host: Path) -> None:
    typed(host, "patch", URL)

    undone = typed(host, "undo")

    assert undone.exit_code == 0, undone.output
    assert manifest(host) == KUBEADM
    assert list((host / "bursar").iterdir()) == []
    assert [each.name for each in (host / "manifests").iterdir()] == ["kube-scheduler.yaml"]
    assert typed(host, "undo").exit_code == 1


def test_a_second_patch_starts_from_the_first_backup(host: Path) -> None:
    typed(host, "patch", URL)
    once = manifest(host)

    assert typed(host, "patch", URL).output == "Nothing changes.\n"
    typed(host, "patch", "--extender-url=http://127.0.0.1:9000")

    assert manifest(host) == once
    assert [each["urlPrefix"] for each in configuration(host)["extenders"]] == ["http://127.0.0.1:9000"]
    typed(host, "undo")
    assert manifest(host) == KUBEADM


def test_changes_made_after_the_patch_are_lost_only_by_force(host: Path) -> None:
    typed(host, "patch", URL)
    path = host / "manifests" / "kube-scheduler.yaml"
    path.write_text(path.read_text().replace("cpu: 100m", "cpu: 200m"))

    for command, *flags in (["patch", URL], ["undo"]):
        refused = typed(host, command, *flags)
        assert refused.exit_code == 1
        assert "was changed after it was patched" in refused.output
        assert "cpu: 200m" in manifest(host)
    assert typed(host, "undo", "--force").exit_code == 0
    assert manifest(host) == KUBEADM


def test_a_manifest_that_an_upgrade_wrote_again_is_patched_again(host: Path) -> None:
    typed(host, "patch", URL)
    upgraded = KUBEADM.replace("v1.37.2", "v1.38.0")
    (host / "manifests" / "kube-scheduler.yaml").write_text(upgraded)

    assert typed(host, "patch", URL).exit_code == 0
    assert "kube-scheduler:v1.38.0" in manifest(host)
    typed(host, "undo")
    assert manifest(host) == upgraded


def test_an_own_configuration_keeps_its_profiles_and_its_extenders_stand_first(host: Path) -> None:
    (host / "own").mkdir()
    own = {
        "leaderElection": {"leaderElect": True, "resourceName": "mine"},
        "clientConnection": {"kubeconfig": "/mine", "qps": 7},
        "profiles": [{"schedulerName": "mine", "plugins": {"score": {"disabled": [{"name": "*"}]}}}],
        "extenders": [{"urlPrefix": "https://other", "managedResources": [{"name": "example.com/x"}]}],
    }
    (host / "own" / "c.yaml").write_text(yaml.safe_dump(own))
    pod = yaml.safe_load(KUBEADM)
    pod["spec"]["containers"][0]["command"].append("--config=/inside/c.yaml")
    pod["spec"]["containers"][0]["volumeMounts"].append({"name": "own", "mountPath": "/inside"})
    pod["spec"]["volumes"].append({"name": "own", "hostPath": {"path": f"{host}/own"}})
    (host / "manifests" / "kube-scheduler.yaml").write_text(yaml.safe_dump(pod))

    assert typed(host, "patch", URL).exit_code == 0

    written = configuration(host)
    assert written["leaderElection"] == own["leaderElection"]
    assert written["clientConnection"] == {"kubeconfig": "/mine", "qps": 7, "burst": 1000}
    assert [each["schedulerName"] for each in written["profiles"]] == ["mine", "bursar-scheduler"]
    assert written["profiles"][0] == own["profiles"][0]  # type: ignore[index]
    assert [each["urlPrefix"] for each in written["extenders"]] == ["https://other", "http://127.0.0.1:8445"]
    command = yaml.safe_load(manifest(host))["spec"]["containers"][0]["command"]
    assert len([each for each in command if each.startswith("--config=")]) == 1


def test_an_extender_elsewhere_is_verified_and_shown_a_certificate(host: Path) -> None:
    files = [f"--{name}={host}/bursar/{name}" for name in ("ca", "cert", "key")]
    server = "--server-name=bursar-extender.bursar-system.svc"

    shown = typed(host, "patch", "--extender-url=https://10.96.0.7", *files, server)

    assert shown.exit_code == 0, shown.output
    (entry,) = configuration(host)["extenders"]
    assert entry["enableHTTPS"]
    assert entry["tlsConfig"] == {
        "caFile": f"{host}/bursar/ca",
        "certFile": f"{host}/bursar/cert",
        "keyFile": f"{host}/bursar/key",
        "serverName": "bursar-extender.bursar-system.svc",
    }


@pytest.mark.parametrize(
    ("flags", "code", "sentence"),
    [
        (["--extender-url=https://10.96.0.7"], 2, "without a CA kube-scheduler verifies nothing"),
        (["--extender-url=http://10.96.0.7:8445"], 2, "http://127.0.0.1:PORT"),
        (
            ["--extender-url=https://10.96.0.7", "--ca=/x/ca", "--cert=/x/c", "--key=/x/k"],
            *(2, "the pod sees the files of"),
        ),
        ([URL, "--folder={host}/manifests"], 1, "the kubelet would run the backup there"),
    ],
    ids=["no CA", "no TLS", "not mounted", "the kubelet's folder"],
)
def test_what_would_be_unsafe_is_refused(host: Path, flags: list[str], code: int, sentence: str) -> None:
    refused = typed(host, "patch", *(each.format(host=host) for each in flags))

    assert refused.exit_code == code
    assert sentence in " ".join(refused.output.split())
    assert manifest(host) == KUBEADM


@pytest.mark.parametrize("text", ["", "- a\n", "kind: [", "kind: Pod\nspec: {containers: [{name: x}]}\n"])
def test_a_file_that_is_no_manifest_of_kube_scheduler_is_refused_with_a_sentence(
    host: Path, text: str
) -> None:
    (host / "manifests" / "kube-scheduler.yaml").write_text(text)

    refused = typed(host, "patch", URL)

    assert (refused.exit_code, refused.output[:6]) == (1, "Error:")
    assert not (host / "bursar").exists()
