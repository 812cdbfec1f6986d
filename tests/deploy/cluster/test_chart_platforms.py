"""The chart where a platform wants something else: folders of nodes, probes, labels, resources, the claim."""

import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

from deploy import rendered
from tests.deploy.chart_values import ON, Values
from tests.deploy.reading import loaded
from timekeeper.core.admission.rules.denylist import HOST_PATHS, NODE_PATHS

POSTGRESQL = "--set=database.secretName=bursar-database"
FORMS = {
    "sqlite": (),
    "postgresql": (POSTGRESQL,),
    "cert-manager": ("--set=certManager.enabled=true,podDisruptionBudgets=true,timekeeper.replicas=1",),
    "meter": ("--set=mode=meter,apiService.enabled=false,dashboard.gateway.enabled=false",),
}
# the containers of the chart, and the values that document follows
VALUES_OF = {
    "webhook": "webhook",
    "timekeeper": "timekeeper",
    "kube-scheduler": "scheduler",
    "extender": "extender",
    "agent": "nodeAgent",
    "certificates": "certificates",
}
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


@pytest.fixture(scope="module")
def helm() -> Path:
    return rendered.helm()


@pytest.fixture
def on(tmp_path: Path) -> str:
    """The flag that switches on what is off by default."""
    (tmp_path / "on.yaml").write_text(yaml.safe_dump(ON))
    return f"--values={tmp_path}/on.yaml"


def objects(helm: Path, *flags: str) -> list[Values]:
    return [document for text in rendered.rendered(helm, *flags).values() for document in loaded(text)]


def workloads(found: Iterable[Values]) -> list[Values]:
    return [document for document in found if document["kind"] in ("Deployment", "StatefulSet", "DaemonSet")]


def containers(found: Iterable[Values]) -> Iterator[Values]:
    for workload in workloads(found):
        spec = workload["spec"]["template"]["spec"]
        yield from [*spec["containers"], *spec.get("initContainers", [])]


def agent(helm: Path, *flags: str) -> Values:
    """The spec of the agents' pods."""
    (found,) = (document for document in objects(helm, *flags) if document["kind"] == "DaemonSet")
    return dict(found["spec"]["template"]["spec"])


def folders(pod: Values) -> dict[str, str]:
    """The path on the node of document folder of the agent's container."""
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert paths.keys() <= mounts.keys()
    return {mounts[name]: path for name, path in paths.items()}


FOLDERS = {
    "/host/cgroup": "/sys/fs/cgroup",
    "/host/pod-resources": "/var/lib/kubelet/pod-resources",
    "/host/etc/containerd": "/etc/containerd",
    "/host/etc/crio": "/etc/crio",
    "/host/etc/nvidia-container-runtime": "/etc/nvidia-container-runtime",
    "/host/nri": "/var/run/nri",
    "/host/etc/cdi": "/etc/cdi",
    "/host/run/cdi": "/var/run/cdi",
}


def test_folders_that_nodes_lack_are_left_out_and_others_are_moved(helm: Path, tmp_path: Path) -> None:
    page = (rendered.ROOT / "docs" / "platforms" / "k3s.md").read_text()
    (tmp_path / "talos.yaml").write_text(dedent(page.split("  ```yaml\n")[1].split("  ```\n")[0]))

    assert folders(agent(helm)) == FOLDERS
    of_talos = {at: path for at, path in FOLDERS.items() if not path.startswith("/etc/")}
    of_talos["/host/etc/containerd"] = "/etc/cri"
    assert folders(agent(helm, f"--values={tmp_path}/talos.yaml")) == of_talos


def test_an_agent_without_the_runtimes_socket_starts_no_plugin(helm: Path) -> None:
    (container,) = agent(helm, "--set=nodeAgent.hostPaths.nri=")["containers"]

    assert "--nri-socket=" in container["args"]
    assert "nri" not in {mount["name"] for mount in container["volumeMounts"]}


@pytest.mark.parametrize(
    "root", ["/var/lib/k0s/kubelet", "/var/snap/microk8s/common/var/lib/kubelet", "/data/k"]
)
def test_one_value_moves_the_kubelets_root_for_agents_and_policies(helm: Path, root: str) -> None:
    flag = f"--set=kubeletDir={root}"

    assert folders(agent(helm, flag)) == {**FOLDERS, "/host/pod-resources": f"{root}/pod-resources"}
    both = objects(helm, flag)
    ours = sorted(path for path in HOST_PATHS if path.startswith("/var/lib/kubelet/"))
    own = [path.replace("/var/lib/kubelet", root) for path in ours]
    assert words(both, "bursar-ways-around", "guardedPaths") == [*HOST_PATHS, *own]
    assert words(both, "bursar-node-access", "nodePaths") == [*NODE_PATHS, f"{root}/pods"]


def words(found: Iterable[Values], policy: str, variable: str) -> list[str]:
    """A variable of a policy, which is a list of texts."""
    (spec,) = (
        document["spec"]
        for document in found
        if (document["kind"], document["metadata"]["name"]) == ("ValidatingAdmissionPolicy", policy)
    )
    (expression,) = (document["expression"] for document in spec["variables"] if document["name"] == variable)
    return list(yaml.safe_load(expression))


@pytest.mark.parametrize("form", ["sqlite", "postgresql"])
def test_every_probe_takes_periods_thresholds_and_timeouts(helm: Path, tmp_path: Path, form: str) -> None:
    other = {"periodSeconds": 41, "timeoutSeconds": 42, "failureThreshold": 43, "initialDelaySeconds": 44}
    whole = {"exec": {"command": ["true"]}, **other}
    given: Values = {of: dict.fromkeys(PROBES, other) for of in VALUES_OF.values()}
    given["certificates"] = {"livenessProbe": whole}
    (tmp_path / "probes.yaml").write_text(yaml.safe_dump(given))
    changed = f"--values={tmp_path}/probes.yaml"
    before, after = (
        {container["name"]: container for container in containers(objects(helm, *FORMS[form], *more))}
        for more in ((), (changed,))
    )

    assert before.keys() == after.keys() == VALUES_OF.keys()
    assert after.pop("certificates")["livenessProbe"] == whole
    for name, container in after.items():
        for probe in PROBES:
            was = {key: value for key, value in before[name][probe].items() if key in ("httpGet", "exec")}
            text = yaml.safe_dump({**was, **other}).replace("timeout=5)", "timeout=42)")
            assert container[probe] == yaml.safe_load(text), (name, probe)


@pytest.mark.parametrize("form", ["sqlite", "postgresql"])
def test_every_container_takes_resources(helm: Path, tmp_path: Path, form: str) -> None:
    given = {
        of: {"resources": {"requests": {"cpu": f"{number}m"}, "limits": {"memory": f"{number}Mi"}}}
        for number, of in enumerate(VALUES_OF.values(), 700)
    }
    (tmp_path / "resources.yaml").write_text(yaml.safe_dump(given))

    for container in containers(objects(helm, *FORMS[form], f"--values={tmp_path}/resources.yaml")):
        wanted = given[VALUES_OF[container["name"]]]["resources"]
        assert container["resources"]["requests"]["cpu"] == wanted["requests"]["cpu"]
        assert container["resources"]["limits"] == wanted["limits"]


@pytest.mark.parametrize("form", FORMS)
def test_every_object_and_pod_takes_labels_and_every_object_annotations(
    helm: Path, on: str, form: str
) -> None:
    more = ("--set=commonLabels.team=gpus,podLabels.of=pods", "--set-string=commonAnnotations.rank=7")
    flags = () if form == "sqlite" else FORMS[form]
    before, after = objects(helm, on, *flags), objects(helm, on, *flags, *more)

    assert len(before) == len(after) > 15
    for was, changed in zip(before, after, strict=True):
        labels, annotations = (was["metadata"].get(key, {}) for key in ("labels", "annotations"))
        assert labels["app.kubernetes.io/part-of"] == "bursar", was
        assert changed["metadata"]["labels"] == {**labels, "team": "gpus"}
        assert changed["metadata"]["annotations"] == {**annotations, "rank": "7"}
        if was in workloads(before):
            pods = changed["spec"]["template"]["metadata"]
            plain = was["spec"]["template"]["metadata"]["labels"]
            assert pods == {"labels": {**plain, "team": "gpus", "of": "pods"}}
            was["spec"]["template"]["metadata"] = pods
        assert changed.get("spec") == was.get("spec")


def claim(helm: Path, *flags: str) -> Values:
    """The template of the ledger's claim."""
    (found,) = (document for document in objects(helm, *flags) if document["kind"] == "StatefulSet")
    (template,) = found["spec"]["volumeClaimTemplates"]
    return dict(template)


def test_the_claim_is_whole_and_takes_access_mode_labels_and_annotations(helm: Path) -> None:
    spec = {"accessModes": ["ReadWriteOncePod"], "resources": {"requests": {"storage": "10Gi"}}}
    labels = {"app.kubernetes.io/part-of": "bursar"}
    whole: Values = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": spec}
    whole["metadata"] = {"name": "ledger", "labels": labels}
    of = "timekeeper.storage"
    flags = (
        f"--set={of}.accessModes={{ReadWriteOnce}},{of}.labels.a=b,{of}.annotations.c=d,commonLabels.e=f",
    )

    assert claim(helm) == whole
    metadata = {"name": "ledger", "labels": {**labels, "a": "b"}, "annotations": {"c": "d"}}
    other = {**whole, "metadata": metadata, "spec": {**spec, "accessModes": ["ReadWriteOnce"]}}
    assert claim(helm, *flags) == other


@pytest.mark.parametrize("values", ["", "values-ha.yaml", "on"])
def test_helm_lint_finds_nothing(helm: Path, on: str, values: str) -> None:
    chart = rendered.CHART
    flags = {"": (), "on": (on,)}.get(values, (f"--values={chart / values}",))
    command = [str(helm), "lint", "--strict", str(chart), "--set=images.prefix=x", *flags]
    done = subprocess.run(command, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout + done.stderr


def test_null_takes_the_default_and_a_part_of_a_value_can_be_left_out(helm: Path) -> None:
    flags = ("--set=webhook.replicas=null", "--set=webhook.resources.limits=null")
    (webhook,) = (
        document
        for document in workloads(objects(helm, *flags))
        if document["metadata"]["name"] == "bursar-webhook"
    )

    assert webhook["spec"]["replicas"] == 2
    (container,) = webhook["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"requests": {"cpu": "100m", "memory": "128Mi"}}


def test_without_any_value_but_the_images_the_chart_renders_its_defaults(helm: Path, tmp_path: Path) -> None:
    """What `--reuse-values` makes of a release that had none of them."""
    none = dict.fromkeys(rendered.schema()["properties"].keys() - {"images"})
    (tmp_path / "none.yaml").write_text(yaml.safe_dump(none))

    assert rendered.rendered(helm, f"--values={tmp_path}/none.yaml") == rendered.rendered(helm)
