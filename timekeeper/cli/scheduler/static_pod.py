"""The static pod of kube-scheduler, as kubeadm writes it, with a configuration in a folder of the host."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from timekeeper.cli.output import CommandError
from timekeeper.core.json_values import mapping, sequence

CONFIGURATION = "kube-scheduler-configuration.yaml"
_PROGRAM, _VOLUME = "kube-scheduler", "bursar-scheduler"
_CONFIG, _KUBECONFIG = "--config=", "--kubeconfig="


def is_patched(pod: Mapping[str, Any]) -> bool:
    """Whether the pod has our folder."""
    volumes = sequence(mapping(pod.get("spec")).get("volumes"))
    return any(mapping(each).get("name") == _VOLUME for each in volumes)


def kubeconfig(pod: Mapping[str, Any]) -> str:
    """The file with which kube-scheduler reaches the API server. Raises CommandError."""
    return _flag(_container(pod), _KUBECONFIG)


def configuration_file(pod: Mapping[str, Any]) -> str:
    """The host's path of the configuration that the pod has already; "": it has none. Raises CommandError."""
    container = _container(pod)
    path = _flag(container, _CONFIG)
    if not path:
        return ""
    sources = {
        mapping(each).get("name"): str(mapping(mapping(each).get("hostPath")).get("path", ""))
        for each in sequence(mapping(pod.get("spec")).get("volumes"))
    }
    for mount in sequence(container.get("volumeMounts")):
        inside, source = PurePosixPath(str(mount.get("mountPath"))), sources.get(mount.get("name"))
        if source and PurePosixPath(path).is_relative_to(inside):
            return str(PurePosixPath(source) / PurePosixPath(path).relative_to(inside))
    raise CommandError(f"{_CONFIG}{path} is in no hostPath volume of the pod, so it cannot be read here")


def patched(pod: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """The pod with the configuration of this folder. Raises CommandError."""
    container = _container(pod)
    command = [each for each in container["command"] if not each.startswith((_CONFIG, _KUBECONFIG))]
    mount = {"mountPath": folder, "name": _VOLUME, "readOnly": True}
    volume = {"hostPath": {"path": folder, "type": "Directory"}, "name": _VOLUME}
    spec = mapping(pod["spec"])
    changed = {
        **container,
        "command": [*command, f"{_CONFIG}{folder}/{CONFIGURATION}"],
        "volumeMounts": [*sequence(container.get("volumeMounts")), mount],
    }
    containers = [changed if each is container else each for each in sequence(spec.get("containers"))]
    return {
        **pod,
        "spec": {**spec, "containers": containers, "volumes": [*sequence(spec.get("volumes")), volume]},
    }


def _container(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container that runs kube-scheduler. Raises CommandError."""
    if pod.get("kind") == "Pod":
        for each in sequence(mapping(pod.get("spec")).get("containers")):
            command = sequence(mapping(each).get("command"))
            if command and str(command[0]).rpartition("/")[2] == _PROGRAM:
                return mapping(each)
    raise CommandError(f"the file is no Pod with a container whose command begins with {_PROGRAM}")


def _flag(container: Mapping[str, Any], flag: str) -> str:
    return next((each.removeprefix(flag) for each in container["command"] if each.startswith(flag)), "")
