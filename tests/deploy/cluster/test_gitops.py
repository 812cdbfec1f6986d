"""docs/gitops.md: what Argo CD does to Bursar's objects, again and again, is to apply what `helm template`
renders."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import yaml

from deploy import rendered
from deploy.local.cluster import ControlPlane
from tests.deploy.installed import InstalledPods
from tests.deploy.reading import NAMESPACE, ROOT, loaded
from tests.docs.shell import console, run
from tests.support.control_plane import Answer, answer, collection, kubectl
from tests.support.waiting import eventually
from tests.support.worker_control_plane import Lender
from tests.worlds import Json
from timekeeper.settler.mode_parameters import CONFIG_MAPS

WAYS = (("--server-side", "--field-manager=argocd-controller", "--force-conflicts"), ())


def test_a_second_sync_changes_nothing_that_bursar_has_written(lender: Lender, tmp_path: Path) -> None:
    with lender.lent() as cp, ExitStack() as stack:
        running = InstalledPods(cp, "enforce", tmp_path, stack)
        file = tmp_path / "rendered.yaml"
        file.write_text(yaml.safe_dump_all(running.documents))
        for number, way in enumerate(WAYS):
            kubectl(cp, "apply", *way, "-f", str(file))
            name = f"observed-{number}"
            kubectl(cp, "create", "namespace", name)
            kubectl(cp, "label", "namespace", name, "bursar.dev/mode=observe")
            eventually(lambda name=name: {each.get(name) for each in modes(cp)} == {"observe"})  # type: ignore[misc]
            before = there(cp, running.documents)

            kubectl(cp, "apply", *way, "-f", str(file))

            assert there(cp, running.documents) == before
            assert {each["_initial"] for each in modes(cp)} == {"enforce"}
        bundles = {
            each["clientConfig"].get("caBundle", "")
            for one in before.values()
            for each in one.get("webhooks", ())
        }
        assert len(bundles) == 1
        assert "" not in bundles


def half_more(cp: ControlPlane) -> Answer:
    """What is said of a pod with 150 per cent of a card."""
    resources = {"limits": {"bursar.dev/gpu-percent": "150"}}
    container = {"name": "main", "image": "example", "resources": resources}
    pod = {"metadata": {"generateName": "half-more-"}, "spec": {"containers": [container]}}
    path = "/api/v1/namespaces/default/pods?dryRun=All"
    return answer(cp, "POST", path, {"apiVersion": "v1", "kind": "Pod", **pod})


def test_observe_becomes_enforce_and_the_way_back_by_apply_without_pruning(
    lender: Lender, tmp_path: Path
) -> None:
    """Settings that somebody wrote in between stay as they are."""
    settings = "timeZone: Europe/Berlin\nweights: {A100: 2}\n"
    with lender.lent() as cp, ExitStack() as stack:
        running = InstalledPods(cp, "observe", tmp_path, stack)
        command = ("create", "configmap", "bursar-settings", "-n", NAMESPACE)
        kubectl(cp, *command, f"--from-literal=_settings={settings}")
        eventually(lambda: {data.get("_default") for data in modes(cp)} == {"observe"})
        observed = half_more(cp)
        assert observed.refusal == ""
        assert "150" in str(observed.warnings)

        for mode in ("enforce", "observe", "enforce"):
            file = tmp_path / f"{mode}.yaml"
            file.write_text(yaml.safe_dump_all(running.rendered(mode)))
            kubectl(cp, "apply", *WAYS[0], "-f", str(file))

            eventually(lambda mode=mode: {data.get("_default") for data in modes(cp)} == {mode})  # type: ignore[misc]
            eventually(lambda mode=mode: bool(half_more(cp).refusal) == (mode == "enforce"))  # type: ignore[misc]
            path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/bursar-settings"
            assert cp.api.call("GET", path)["data"] == {"_settings": settings}
        assert "150" in half_more(cp).refusal


def test_what_mode_meter_leaves_without_pruning_is_named_until_the_pages_commands_have_removed_it(
    lender: Lender, tmp_path: Path
) -> None:
    def render(mode: str) -> str:
        file = tmp_path / f"{mode}.yaml"
        texts = rendered.rendered(rendered.helm(), f"--set=mode={mode}")
        file.write_text(yaml.safe_dump_all([made for text in texts.values() for made in loaded(text)]))
        return str(file)

    def named(cp: ControlPlane) -> list[str]:
        plugin = [sys.executable, "-m", "timekeeper.cli.main", "doctor", "-o", "json"]
        variables = {**os.environ, "KUBECONFIG": str(cp.admin_kubeconfig)}
        done = subprocess.run(plugin, cwd=ROOT, env=variables, capture_output=True, text=True)
        found = json.loads(done.stdout)["items"]
        errors = [result for result in found if result["level"] == "error"]
        return [result["sentence"] for result in errors if result["subject"] == "modes"]

    with lender.lent() as cp:
        kubectl(cp, "apply", *WAYS[0], "-f", render("enforce"))
        kubectl(cp, "apply", *WAYS[0], "-f", render("meter"))

        (said,) = named(cp)
        for left in (
            "1 MutatingWebhookConfiguration",
            "1 ValidatingWebhookConfiguration",
            "28 ValidatingAdmissionPolicy",
            "3 Deployment",
        ):
            assert left in said
        (commands,) = console((ROOT / "docs" / "gitops.md").read_text())
        run(cp, commands, tmp_path)
        assert named(cp) == []
        stateful = cp.api.call("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets")["items"]
        assert [workload["metadata"]["name"] for workload in stateful] == ["bursar-timekeeper"]


def modes(cp: ControlPlane) -> list[dict[str, str]]:
    """What the policies are told of namespaces, in each of the objects that the timekeeper writes."""
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    return [cp.api.call("GET", f"{path}/{name}")["data"] for name in CONFIG_MAPS]


def there(cp: ControlPlane, documents: Iterable[Json]) -> dict[str, Json]:
    """These objects as they are, without who wrote which field and the status."""
    found = {}
    for each in documents:
        path = f"{collection(each)}/{each['metadata']['name']}"
        one = cp.api.call("GET", path)
        one["metadata"] = {
            key: value
            for key, value in one["metadata"].items()
            if key not in ("managedFields", "resourceVersion")
        }
        one.pop("status", None)
        found[path] = one
    return found
