"""Good reviews for each route, to be spoilt."""

import copy

from tests.webhook.worlds import admitted, governed, half, plain, review_of
from tests.worlds import Json, container


def _bases() -> dict[str, list[Json]]:
    """Good reviews for each route, to be spoilt."""
    rich = admitted(
        half(env=[{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]),
        plain(volumeMounts=[{"name": "data", "mountPath": "/data"}], envFrom=[{"prefix": "APP_"}]),
        init=[container("first", gpu_percent="25")],
        volumes=[{"name": "data", "hostPath": {"path": "/srv"}}],
        schedulingGates=[{"name": "example.com/x"}],
        securityContext={"runAsNonRoot": True},
        resourceClaims=[{"name": "c", "resourceClaimName": "d"}],
        priorityClassName="batch",
    )
    rich["metadata"]["annotations"] = {"bursar.dev/policy": "spread", "bursar.dev/gpu-models": "T4,A100"}
    whole = admitted({"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}})
    debugged = copy.deepcopy(rich)
    debugged["spec"]["ephemeralContainers"] = [{"name": "debug", "image": "x", "env": []}]
    pods = [
        review_of(rich),
        review_of(governed(admitted(half()))),
        review_of(whole),
        review_of(debugged, operation="UPDATE", subResource="ephemeralcontainers", oldObject=rich),
        review_of(None, operation="DELETE", oldObject=rich),
    ]
    return {
        "/mutate": pods,
        "/validate": pods,
        "/templates": [_of("deployments", "apps", "Deployment", {"spec": {"template": rich}})],
        "/budgets": [_of("configmaps", "", "ConfigMap", _config_map())],
    }


def _of(resource: str, group: str, kind: str, rest: Json) -> Json:
    raw = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "x", "namespace": "team-a"}, **rest}
    return review_of(
        raw,
        kind={"group": group, "version": "v1", "kind": kind},
        resource={"group": group, "version": "v1", "resource": resource},
        name="x",
        oldObject=copy.deepcopy(raw),
        operation="UPDATE",
    )


def _config_map() -> Json:
    budget = "gpuHours: 10\nperiod: month\nrules: {share-range: warn}\n"
    settings = "timeZone: Europe/Berlin\nweights: {H100: 2.5}\n"
    labels = {"bursar.dev/budgets": "true"}
    return {
        "metadata": {"name": "bursar-budgets", "namespace": "bursar-system", "labels": labels},
        "data": {"team-a": budget, "_settings": settings},
    }


BASES = _bases()
