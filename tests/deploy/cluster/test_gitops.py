"""What Argo CD does to Bursar's objects, again and again: it applies what `helm template` renders."""

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import yaml

from deploy.local.cluster import ControlPlane
from tests.deploy.installed import InstalledPods
from tests.deploy.reading import NAMESPACE
from tests.support.control_plane import collection, kubectl
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
