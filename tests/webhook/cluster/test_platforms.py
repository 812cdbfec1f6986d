"""What platforms do to pods with a sidecar, on a real API server: private registries, digests in place of
tags, users that the cluster chooses, and virtual clusters."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.local.cluster import ControlPlane
from tests.support.waiting import eventually
from tests.webhook.clusters import Registered
from tests.webhook.injector import Injector, configuration
from tests.webhook.worlds import half, sidecar_of
from tests.worlds import Json

PODS = "/api/v1/namespaces/{}/pods"
ACCOUNT = "/api/v1/namespaces/team-a/serviceaccounts"
VIRTUAL = "vcluster.loft.sh/"


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registered]:
    """A namespace of users whose account has a secret for images, and one with a range of users."""
    folder = tmp_path_factory.mktemp("webhook")
    flags = "--sidecar-pull-secret=bursar-pull", f"--kubeconfig={control_plane.admin_kubeconfig}"
    with Registered(control_plane, folder, *flags) as cluster:
        users = {"openshift.io/sa.scc.uid-range": "1000650000/10000"}
        cluster.post("/api/v1/namespaces", {"metadata": {"name": "ranged", "annotations": users}})
        accounts = [f"/api/v1/namespaces/{name}/serviceaccounts/default" for name in ("team-a", "ranged")]
        eventually(lambda: all(map(control_plane.api.answers, accounts)), "the namespaces' accounts")
        cluster.post(
            ACCOUNT, {"metadata": {"name": "puller"}, "imagePullSecrets": [{"name": "of-the-account"}]}
        )
        yield cluster


def made(
    cluster: Registered, name: str, namespace: str = "team-a", metadata: Json | None = None, **spec: Any
) -> Json:
    """The pod as the API server stores it."""
    body = {"metadata": {"name": name, **(metadata or {})}, "spec": {"containers": [half()], **spec}}
    stored: Json = cluster.post(PODS.format(namespace), body)
    return stored


def secrets(raw: Json) -> list[str]:
    return [secret["name"] for secret in raw["spec"]["imagePullSecrets"]]


def test_the_secret_of_the_sidecar_stands_beside_those_of_the_account_or_of_the_pod(
    cluster: Registered,
) -> None:
    own = [{"name": "of-the-pod"}]

    assert secrets(made(cluster, "plain")) == ["bursar-pull"]
    with_accounts = made(cluster, "account", serviceAccountName="puller")
    assert secrets(with_accounts) == ["of-the-account", "bursar-pull"]
    assert secrets(made(cluster, "own", imagePullSecrets=own)) == ["of-the-pod", "bursar-pull"]
    both = made(cluster, "both", serviceAccountName="puller", imagePullSecrets=own)
    assert secrets(both) == ["of-the-pod", "bursar-pull"]  # the account's are for pods without any
    copied = with_accounts["spec"]["imagePullSecrets"]
    assert secrets(made(cluster, "copy", imagePullSecrets=copied)) == ["of-the-account", "bursar-pull"]


@pytest.mark.parametrize("order", ["aa-before", "zzz-after"])
@pytest.mark.parametrize("again", ["IfNeeded", "Never"])
def test_a_webhook_that_writes_digests_keeps_no_pod_out(cluster: Registered, order: str, again: str) -> None:
    injector = Injector(cluster.tls)
    bundle = base64.b64encode(cluster.tls.ca.bundle).decode()
    cluster.post(
        "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
        configuration(order, injector, bundle),
    )
    labels = {"change": "digests", "called": order, "again": again}
    numbers = iter(range(1_000))

    def stored() -> Json:
        name = f"{order}-{again.lower()}-{next(numbers)}"
        return made(cluster, name, metadata={"labels": labels})

    eventually(lambda: "@sha256:" in stored()["spec"]["containers"][0]["image"], "the other webhook")
    image = sidecar_of(stored())["image"]
    cluster.cp.api.call(
        "DELETE", f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{order}"
    )
    injector.end()

    assert ("@sha256:" in image) is (order == "zzz-after" or again == "IfNeeded")


def test_a_sidecar_names_no_user_where_its_namespace_has_a_range(cluster: Registered) -> None:
    def names_a_user(namespace: str, number: int, **spec: Any) -> bool:
        raw = made(cluster, f"user-{number}", namespace, **spec)
        return "runAsUser" in sidecar_of(raw)["securityContext"]

    numbers = iter(range(10_000))
    eventually(lambda: not names_a_user("ranged", next(numbers)), "the webhook to know the namespace")
    assert names_a_user("team-a", next(numbers))
    assert names_a_user("ranged", next(numbers), securityContext={"runAsUser": 0})


def test_gangs_of_two_virtual_namespaces_are_two(cluster: Registered) -> None:
    """As vCluster's syncer writes pods of virtual Jobs: all belong to its Service."""

    def synced(name: str, namespace: str, **said: str) -> str:
        job = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u-1", "controller": True}
        service = {"apiVersion": "v1", "kind": "Service", "name": "vc", "uid": "u-vc", "controller": True}
        annotations = {
            **{f"bursar.dev/{key}": value for key, value in said.items()},
            f"{VIRTUAL}object-namespace": namespace,
            f"{VIRTUAL}owner-references": json.dumps([job]),
        }
        metadata = {
            "annotations": annotations,
            "labels": {f"{VIRTUAL}managed-by": "vc"},
            "ownerReferences": [service],
        }
        found: str = made(cluster, name, metadata=metadata)["metadata"]["annotations"]["bursar.dev/gang-key"]
        return found

    named = {"gang": "train", "gang-size": "2"}
    assert synced("train-x-one", "one", **named) == "bursar/train@one.vc"
    assert synced("train-x-two", "two", **named) == "bursar/train@two.vc"
    assert synced("sized-x-one", "one", **{"gang-size": "2"}) == "job/train@one.vc/u-1"
