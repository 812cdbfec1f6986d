"""Reading the objects that `facts` has."""

import json
import shlex
from typing import Any

from timekeeper.cli.doctor.check_result import CheckResult
from timekeeper.cli.doctor.facts import Facts, NotReadable
from timekeeper.core.json_values import annotations_of, mapping, sequence

_APPLY = "kubectl apply --server-side -f deploy/manifests/"
_BY_HELM = "meta.helm.sh/release-"


def unknown(subject: str, why: NotReadable) -> CheckResult:
    """The result of a check that could not read its objects."""
    return CheckResult("unknown", subject, why.reason.splitlines()[0], "use an account that may read it")


def items(listed: Any) -> list[Any]:
    """The objects of a list."""
    return list(sequence(mapping(listed).get("items")))


def named(listed: Any, name: str) -> Any:
    """The object of this name, or None."""
    return next((each for each in items(listed) if each["metadata"]["name"] == name), None)


def applying(facts: Facts, file: str = "") -> str:
    """The command that makes the objects of a manifest, or of all, what they should be. Where Helm installed
    Bursar it is Helm's: the plain manifests would undo the values of the release."""
    return upgrading(facts) or f"{_APPLY}{file}"


def upgrading(facts: Facts, value: str = "") -> str:
    """The command that upgrades the release of Helm with a value; "" where Helm did not install Bursar."""
    release = _release(facts)
    if not release:
        return ""
    name, namespace = map(shlex.quote, release)
    setting = f" --set {value}" if value else ""
    return f"helm upgrade {name} deploy/chart -n {namespace} --reset-then-reuse-values{setting}"


def logs_of(facts: Facts, component: str, lines: int = 50) -> str:
    """The command that shows the newest lines of all pods of a component, whatever creates them; -1: all."""
    selector = f"app.kubernetes.io/component={component}"
    return f"kubectl logs -n {facts.system_namespace} -l {selector} --tail={lines}"


def _release(facts: Facts) -> tuple[str, str] | None:
    """Name and namespace of the release that Bursar's objects are of."""
    lists = (*facts.workloads, facts.policies, facts.mutating)
    for each in (one for listed in lists for one in items(listed)):
        name, namespace = (annotations_of(each).get(f"{_BY_HELM}{end}") for end in ("name", "namespace"))
        if name and namespace and "bursar" in str(each["metadata"]["name"]):
            return str(name), str(namespace)
    return None


def minor_of(facts: Facts) -> int:
    """The API server's minor version; 0: not known."""
    if isinstance(facts.version, NotReadable):
        return 0
    return int("".join(filter(str.isdigit, str(json.loads(facts.version).get("minor", "0")))) or "0")


def some_of(names: list[str]) -> str:
    """At most five names."""
    return ", ".join(sorted(names)[:5]) + (" and others" if len(names) > 5 else "")
