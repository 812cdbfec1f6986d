"""What an account may do, as single rights: from the manifests' rules, and from the API server's log."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.deploy.reading import NAMESPACE, Json, of_kind, the

ANYWHERE = "*"


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource (with its subresource), in one namespace or anywhere, on one name or any."""

    verb: str
    resource: str
    group: str = ""
    namespace: str = ANYWHERE
    name: str = ANYWHERE

    def covers(self, other: "Right") -> bool:
        """Whether who has this right may do the other."""
        return (self.verb, self.resource, self.group) == (other.verb, other.resource, other.group) and all(
            mine in (ANYWHERE, theirs)
            for mine, theirs in ((self.namespace, other.namespace), (self.name, other.name))
        )


def of_role(role: Json) -> set[Right]:
    """The rights in a Role or ClusterRole; a nonResourceURL is the resource of no group."""
    namespace = role["metadata"].get("namespace", ANYWHERE)
    return {
        Right(verb, resource, group, namespace, name)
        for rule in role["rules"]
        for group in rule.get("apiGroups", [""])
        for resource in rule.get("resources") or rule["nonResourceURLs"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [ANYWHERE])
    }


def granted(account: str) -> set[Right]:
    """The rights that the manifests' own roles give a service account."""
    bindings = [
        binding
        for binding in of_kind("RoleBinding", "ClusterRoleBinding")
        if account in [subject["name"] for subject in binding["subjects"]]
    ]
    roles = [(binding["roleRef"], binding["metadata"].get("namespace")) for binding in bindings]
    return {
        right
        for reference, namespace in roles
        for role in of_kind(reference["kind"])
        if role["metadata"]["name"] == reference["name"]
        and role["metadata"].get("namespace") in (None, namespace)
        for right in of_role(role)
    }


@dataclass(frozen=True, slots=True)
class Call:
    """One call that the API server has logged."""

    account: str
    right: Right
    status: int


def logged(file: Path) -> list[Call]:
    """The calls of our service accounts in an audit log, those on no resource (/version, /readyz) left
    out."""
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    return [_call(entry) for entry in entries if "objectRef" in entry]


def _call(entry: dict[str, Any]) -> Call:
    user = re.fullmatch(f"system:serviceaccount:{NAMESPACE}:(.+)", entry["user"]["username"])
    assert user, entry["user"]
    about = entry["objectRef"]
    resource = "/".join(part for part in (about["resource"], about.get("subresource")) if part)
    right = Right(
        entry["verb"],
        resource,
        about.get("apiGroup", ""),
        about.get("namespace") or ANYWHERE,
        # a name is not known yet to who authorises a create
        ANYWHERE if entry["verb"] == "create" and "/" not in resource else about.get("name") or ANYWHERE,
    )
    return Call(user[1], right, entry.get("responseStatus", {}).get("code", 0))


def role(kind: str, name: str) -> set[Right]:
    """The rights in the manifests' role of this name."""
    return of_role(the(kind, name))
