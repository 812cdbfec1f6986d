"""Other mutating webhooks, such as meshes and secret stores bring: what they do to pods, and a server that
does it.

A change is a pure function from a pod to RFC 6902 operations. All but `STUBBORN` find out what they have done
already and do it once.
"""

import base64
import copy
from collections.abc import Callable

import orjson

from tests.support.http_server import JsonHandler, Served
from tests.support.tls import Tls
from tests.worlds import Json

Change = Callable[[Json], list[Json]]

RULE: Json = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
ALL: Json = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
PROXY: Json = {
    "name": "proxy",
    "image": "registry.example/proxy:1",
    "env": [{"name": "MESH", "value": "1"}, ALL],
}
NATIVE: Json = PROXY | {"name": "native-proxy", "restartPolicy": "Always"}
INIT: Json = PROXY | {"name": "proxy-init", "command": ["iptables"]}


def _listed(pod: Json, field: str) -> list[Json]:
    return list(pod["spec"].get(field) or [])


def _lacks(pod: Json, field: str, name: str) -> bool:
    return all(each["name"] != name for each in _listed(pod, field))


def _adding(field: str, one: Json, first: bool) -> Change:
    def change(pod: Json) -> list[Json]:
        if not _lacks(pod, field, one["name"]):
            return []
        if field not in pod["spec"]:
            return [{"op": "add", "path": f"/spec/{field}", "value": [one]}]
        return [{"op": "add", "path": f"/spec/{field}/{0 if first else '-'}", "value": one}]

    return change


def _everywhere(pod: Json, edit: Callable[[Json], None]) -> list[Json]:
    """Replaces the containers by edited ones, as a webhook that sends whole lists does."""
    changed = []
    for field in ("containers", "initContainers"):
        before = _listed(pod, field)
        after = copy.deepcopy(before)
        for each in after:
            edit(each)
        if after != before:
            changed.append({"op": "replace", "path": f"/spec/{field}", "value": after})
    return changed


def variables(pod: Json) -> list[Json]:
    """A variable first in every container, ours too."""

    def edit(container: Json) -> None:
        present = container.get("env") or []
        if all(each["name"] != "HTTP_PROXY" for each in present):
            container["env"] = [{"name": "HTTP_PROXY", "value": "http://proxy"}, *present]

    return _everywhere(pod, edit)


def mounts(pod: Json) -> list[Json]:
    """A volume first, mounted first in every container."""
    if not _lacks(pod, "volumes", "certificates"):
        return []
    volume = {"name": "certificates", "emptyDir": {}}

    def edit(container: Json) -> None:
        mount = {"name": "certificates", "mountPath": "/etc/mesh"}
        container["volumeMounts"] = [mount, *(container.get("volumeMounts") or [])]

    volumes = [volume, *_listed(pod, "volumes")]
    return [{"op": "add", "path": "/spec/volumes", "value": volumes}, *_everywhere(pod, edit)]


def marks(pod: Json) -> list[Json]:
    """Labels and annotations of its own, each map written whole with what is there."""
    metadata = pod["metadata"]
    return [
        {"op": "add", "path": f"/metadata/{name}", "value": {**(metadata.get(name) or {}), "mesh": "on"}}
        for name in ("labels", "annotations")
        if (metadata.get(name) or {}).get("mesh") != "on"
    ]


def mirrors(pod: Json) -> list[Json]:
    """Every image from a mirror, pulled always."""

    def edit(container: Json) -> None:
        if not container["image"].startswith("mirror.example/"):
            container["image"] = f"mirror.example/{container['image']}"
            container["imagePullPolicy"] = "Always"

    return _everywhere(pod, edit)


def order(pod: Json) -> list[Json]:
    """All containers in the order of their names backwards, but the proxy first of all."""
    changed = []
    for field in ("containers", "initContainers"):
        before = _listed(pod, field)
        after = sorted(before, key=lambda each: str(each["name"]), reverse=True)
        after.sort(key=lambda each: each["name"] != PROXY["name"])
        if after != before:
            changed.append({"op": "replace", "path": f"/spec/{field}", "value": after})
    return changed


def digests(pod: Json) -> list[Json]:
    """Names each image by a digest, as webhooks that verify signatures do."""

    def edit(container: Json) -> None:
        image, _, known = container["image"].partition("@")
        container["image"] = f"{image}@{known or 'sha256:' + 'ab' * 32}"

    return _everywhere(pod, edit)


CHANGES: dict[str, Change] = {
    "container-first": _adding("containers", PROXY, first=True),
    "container-last": _adding("containers", PROXY, first=False),
    "native-first": _adding("initContainers", NATIVE, first=True),
    "native-last": _adding("initContainers", NATIVE, first=False),
    "init-first": _adding("initContainers", INIT, first=True),
    "init-last": _adding("initContainers", INIT, first=False),
    "variables": variables,
    "mounts": mounts,
    "marks": marks,
    "mirrors": mirrors,
    "order": order,
    "digests": digests,
}


def stubborn(pod: Json) -> list[Json]:
    """Shows every container all cards, at each call anew."""

    def edit(container: Json) -> None:
        others = [each for each in container.get("env") or [] if each["name"] != ALL["name"]]
        container["env"] = [*others, ALL]

    return _everywhere(pod, edit)


def takes_away(pod: Json) -> list[Json]:
    """Leaves no container that is called as ours."""
    changed = []
    for field in ("containers", "initContainers"):
        left = [each for each in _listed(pod, field) if each["name"] != "bursar-sidecar"]
        if len(left) < len(_listed(pod, field)):
            changed.append({"op": "replace", "path": f"/spec/{field}", "value": left})
    return changed


def asks(pod: Json) -> list[Json]:
    """Gives the first container half a card."""
    value = {"limits": {"bursar.dev/gpu-percent": "50"}, "requests": {"bursar.dev/gpu-percent": "50"}}
    return [{"op": "add", "path": "/spec/containers/0/resources", "value": value}]


def asks_late(pod: Json) -> list[Json]:
    """At its second call alone, which it knows by what it wrote at the first: gives the first container half
    a card, and says that we have governed it."""
    if all(each["name"] != "late" for each in pod["spec"]["containers"]):
        return [{"op": "add", "path": "/spec/containers/-", "value": {"name": "late", "image": "x"}}]
    governed = {"op": "add", "path": "/metadata/labels/bursar.dev~1governed", "value": "true"}
    return [*asks(pod), governed]


# What no order of calls can mend: such pods are refused.
HOSTILE: dict[str, Change] = {
    "stubborn": stubborn,
    "takes-away": takes_away,
    "asks": asks,
    "asks-late": asks_late,
}


class Injector(Served):
    """Serves each change under its name as a path; ``calls`` has the path and the pod's name of each review
    answered."""

    def __init__(self, tls: Tls) -> None:
        self.calls: list[tuple[str, str]] = []
        outer = self

        class Handler(JsonHandler):
            def do_POST(self) -> None:
                asked = self.body()["request"]
                name = self.path.partition("?")[0].strip("/")
                outer.calls.append((name, asked["object"]["metadata"].get("name", "")))
                self.answer(200, review_answer(asked, (CHANGES | HOSTILE)[name]))

        super().__init__(Handler, tls.server())


def review_answer(asked: Json, change: Change) -> Json:
    """The AdmissionReview that answers this request with the change."""
    response: Json = {"uid": asked["uid"], "allowed": True}
    operations = change(asked["object"])
    if operations:
        patch = base64.b64encode(orjson.dumps(operations)).decode()
        response |= {"patchType": "JSONPatch", "patch": patch}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def of_every_pod(name: str, injector: Injector, ca: str, again: str) -> Json:
    """The registration of one webhook that puts its proxy first into every new pod."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [
            {
                "name": "proxy.example.com",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "reinvocationPolicy": again,
                "clientConfig": {"url": f"{injector.url}/container-first", "caBundle": ca},
                "rules": [RULE],
            }
        ],
    }


def configuration(name: str, injector: Injector, ca: str) -> Json:
    """The injector's registration: a pod chooses its change and its way of being called by the labels
    ``change``, ``called`` (this configuration's name, or ``both`` for every one) and ``again`` (IfNeeded or
    Never)."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [
            {
                "name": f"{change}.{again.lower()}.example.com",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "reinvocationPolicy": again,
                "clientConfig": {"url": f"{injector.url}/{change}", "caBundle": ca},
                "objectSelector": {
                    "matchLabels": {"change": change, "again": again},
                    "matchExpressions": [{"key": "called", "operator": "In", "values": [name, "both"]}],
                },
                "rules": [RULE],
            }
            for change in (*CHANGES, *HOSTILE)
            for again in ("IfNeeded", "Never")
        ],
    }
