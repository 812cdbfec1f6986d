"""A run of the demo, and the pods in it."""

import json
from collections.abc import Callable
from typing import Any

import yaml

from deploy.local.errors import LocalError
from deploy.local.sidecars import Sidecars
from deploy.local.stack import Stack

Json = dict[str, Any]


class StepError(LocalError):
    """A step's claim is false."""


class DemoRun:
    """A run of the demo: runs and prints commands, and waits for conditions."""

    def __init__(self, stack: Stack, sidecars: Sidecars) -> None:
        self.stack = stack
        self.sidecars = sidecars
        self.reader = stack.reader_token()
        self.number = 0

    def title(self, text: str) -> None:
        """Begins a step."""
        self.number += 1
        print(f"\n{self.number}. {text}", flush=True)

    def note(self, text: str) -> None:
        """Prints what a step does without showing it."""
        print(f"   {text}", flush=True)

    def shown(self, *arguments: str, manifest: Json | None = None, from_line: str = "") -> str:
        """Runs kubectl and prints the command, its manifest and its output (from a line on); returns all of
        the output."""
        text = None if manifest is None else yaml.safe_dump(manifest, sort_keys=False)
        print(f"   $ kubectl {' '.join(arguments)}" + (" <<END" if text else ""))
        if text:
            print("".join(f"     {line}\n" for line in text.splitlines()) + "     END")
        done = self.stack.cp.kubectl(*arguments, input=text)
        output = (done.stdout + done.stderr).strip()
        lines = output.splitlines()
        if from_line in lines:
            lines = ["[...]", *lines[lines.index(from_line) :]]
        print("".join(f"   | {line}\n" for line in lines), end="", flush=True)
        return output

    def dry_run(self, namespace: str) -> Json:
        """A GPU pod as it would be admitted now."""
        path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
        pod: Json = self.stack.cp.api.call("POST", path, gpu_pod("dry", namespace, "big", gpu_percent="10"))
        return pod

    def get(self, path: str) -> Any:
        """A GET of the timekeeper's REST API, printed."""
        answer = self.stack.get(path, self.reader)
        print(f"   $ curl -H 'Authorization: Bearer ...' $TIMEKEEPER{path}")
        text = answer if isinstance(answer, str) else json.dumps(answer, indent=2)
        print("".join(f"   | {line}\n" for line in text.splitlines()), end="", flush=True)
        return answer

    def pod(self, name: str, namespace: str = "team-a") -> Json:
        """A pod as the API server has it."""
        pod: Json = self.stack.cp.api.call("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
        return pod

    def until(self, what: str, is_so: Callable[[], bool]) -> None:
        """Waits for a condition. Raises StepError."""
        try:
            self.stack.wait(what, is_so)
        except LocalError as error:
            raise StepError(str(error)) from error

    def until_running(self, name: str, namespace: str = "team-a") -> None:
        """Waits until a pod runs."""
        self.until(
            f"pod {namespace}/{name} to run",
            lambda: self.pod(name, namespace)["status"]["phase"] == "Running",
        )


def check(holds: bool, what: str, seen: object = "") -> None:
    """Prints a claim that is true. Raises StepError for one that is false."""
    if not holds:
        raise StepError(f"not true: {what}; found: {seen}")
    print(f"   => {what}", flush=True)


def gpu_pod(name: str, namespace: str, pool: str, run_for: str = "", **limits: str) -> Json:
    """A pod as a user writes it: one container with GPU limits."""
    metadata: Json = {"name": name, "namespace": namespace}
    if run_for:
        metadata["annotations"] = {
            "local.bursar.dev/run-for": run_for
        }  # kwok ends the container after this time
    resources = {f"bursar.dev/{key.replace('_', '-')}": value for key, value in limits.items()}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "restartPolicy": "Never",
            "nodeSelector": {"pool": pool},
            "containers": [{"name": "train", "image": "example/train:1", "resources": {"limits": resources}}],
        },
    }


def claim_template(name: str, namespace: str, device_class: str) -> Json:
    """Each pod that names it gets a claim on one device of the class."""
    request = {"name": "gpu", "exactly": {"deviceClassName": device_class}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def claiming_pod(name: str, namespace: str, template: str, run_for: str) -> Json:
    """A pod as a user writes it: one container with the device of a claim."""
    pod = gpu_pod(name, namespace, "devices", run_for)
    (container,) = pod["spec"]["containers"]
    container["resources"] = {"claims": [{"name": "gpu"}]}
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": template}]
    return pod


def standing_of(pod: Json) -> str:
    """The standing at which a pod was admitted."""
    return str(pod["metadata"]["annotations"]["bursar.dev/standing"])


def card_of(pod: Json) -> str:
    """The UUIDs that the pod's container sees."""
    return str(pod["metadata"]["annotations"].get("visible-devices.bursar.dev/train", ""))
