"""GPU pods of several sizes, as users write them and as a webhook gets them."""

import json

import orjson

from tests.webhook.worlds import review_of
from tests.worlds import Json

# name -> KiB of settings that the pod carries in its environment, and its containers
SIZES = {"10 KB": (3, 1), "84 KB": (36, 1), "100 containers": (0, 100)}


def written(kib: int, containers: int) -> Json:
    """A half-card pod with so much environment, as ``kubectl apply`` sends it: with a copy of itself in an
    annotation. A gate of the benchmark's own keeps every scheduler away."""
    each = [_container(f"main-{index}") for index in range(containers)]
    each[0]["resources"] = {"limits": {"bursar.dev/gpu-percent": "50"}}
    each[0]["env"] = [
        {"name": f"SETTING_{index}", "value": "https://service.example/some/path?with=values&and=more"}
        for index in range(kib * 1024 // 95)
    ]
    pod: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "bench-", "labels": {"app": "bench"}},
        "spec": {"schedulingGates": [{"name": "example.com/bench"}], "containers": each},
    }
    annotation = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(pod)}
    return pod | {"metadata": pod["metadata"] | {"annotations": annotation}}


def review(pod: Json) -> bytes:
    """The body that a webhook gets at the pod's creation, with what the API server fills in."""
    filled = json.loads(json.dumps(pod))
    filled["metadata"]["namespace"] = "bench"
    mount = {"name": "kube-api-access-x", "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/sa"}
    for each in filled["spec"]["containers"]:
        each |= {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}
        each |= {"imagePullPolicy": "IfNotPresent", "volumeMounts": [mount]}
        limits = each["resources"].get("limits")
        if limits:
            each["resources"]["requests"] = limits
    token = {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}
    filled["spec"] |= {
        "volumes": [
            {"name": "kube-api-access-x", "projected": {"defaultMode": 420, "sources": [token]}},
        ],
        "priority": 0,
        "preemptionPolicy": "PreemptLowerPriority",
        "schedulerName": "default-scheduler",
        "terminationGracePeriodSeconds": 30,
        "serviceAccountName": "default",
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "securityContext": {},
    }
    return orjson.dumps(review_of(filled | {"status": {}}, namespace="bench"))


def _container(name: str) -> Json:
    requests = {"cpu": "100m", "memory": "64Mi"}
    return {"name": name, "image": "registry.example/team/app:1.2.3", "resources": {"requests": requests}}
