"""Owners of idle pods on a real API server, by the rights that the chart gives with `idleScaling`."""

from typing import Any

import pytest

from deploy import rendered
from deploy.local.cluster import ControlPlane
from tests.deploy.reading import NAMESPACE, loaded, the
from tests.support.control_plane import apply, create_namespace
from tests.support.waiting import eventually
from timekeeper.accounts.pods import read_user
from timekeeper.runtime.api_server import Answered, Api
from timekeeper.runtime.connect import connect
from timekeeper.settler.evictions import owners

pytestmark = pytest.mark.cluster
DEPLOYMENT = "/apis/apps/v1/namespaces/team-a/deployments/web"


@pytest.fixture(scope="module")
def timekeeper(control_plane: ControlPlane) -> Api:
    """The timekeeper's account, beside a Deployment whose user has consented."""
    for name in (NAMESPACE, "team-a"):
        create_namespace(control_plane, name)
    roles = loaded(rendered.rendered(rendered.helm(), "--set=idleScaling=true")["rbac.yaml"])
    kinds = ("ClusterRole", "ClusterRoleBinding")
    apply(control_plane, *(role for role in roles if role["kind"] in kinds))
    apply(control_plane, the("ServiceAccount", "bursar-timekeeper"), namespace=NAMESPACE)
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": "x"}]}}
    metadata = {"name": "web", "annotations": {"bursar.dev/idle": "scale"}}
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    apply(control_plane, deployment, namespace="team-a")
    made = control_plane.kubectl("create", "token", "-n", NAMESPACE, "bursar-timekeeper")
    return connect(control_plane.kubeconfig(made.stdout.strip(), "timekeeper"))


def pods(cp: ControlPlane) -> list[dict[str, Any]]:
    return list(cp.api.call("GET", "/api/v1/namespaces/team-a/pods")["items"])


def test_a_deployment_is_scaled_to_zero_unless_it_changes_or_an_autoscaler_keeps_it(
    control_plane: ControlPlane, timekeeper: Api
) -> None:
    eventually(lambda: len(pods(control_plane)) == 2, "the pods")
    pod = read_user(pods(control_plane)[0])
    before = owners.topmost(timekeeper, pod)
    assert before is not None
    assert (before.kind, before.name, owners.obstacle(timekeeper, before)) == ("Deployment", "web", "")
    control_plane.kubectl("annotate", "deployment", "web", "-n", "team-a", "a=b")

    late = owners.scale_to_zero(timekeeper, before, 0)
    assert isinstance(late, Answered)
    assert late.status == 409

    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}
    metrics = [{"type": "Resource", "resource": cpu}]
    scaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web", "namespace": "team-a"},
        "spec": {"scaleTargetRef": target, "maxReplicas": 3, "metrics": metrics},
    }
    path = "/apis/autoscaling/v2/namespaces/team-a/horizontalpodautoscalers"
    control_plane.api.call("POST", path, scaler)
    now = owners.topmost(timekeeper, pod)
    assert now is not None
    assert owners.obstacle(timekeeper, now) == "an autoscaler keeps it"
    control_plane.api.call("DELETE", f"{path}/web")

    now = owners.topmost(timekeeper, pod)
    assert now is not None
    assert owners.obstacle(timekeeper, now) == ""
    done = owners.scale_to_zero(timekeeper, now, 0)
    assert isinstance(done, Answered)
    assert done.status == 200, done.message
    assert control_plane.api.call("GET", DEPLOYMENT)["spec"]["replicas"] == 0
    eventually(lambda: not pods(control_plane), "the pods to go")
