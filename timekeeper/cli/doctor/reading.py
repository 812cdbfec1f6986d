"""Reading the objects that `facts` has."""

import json
from typing import Any

from timekeeper.cli.doctor.check_result import CheckResult
from timekeeper.cli.doctor.facts import Facts, NotReadable
from timekeeper.core.json_values import mapping, sequence

APPLY = "kubectl apply --server-side -f deploy/manifests/"


def unknown(subject: str, why: NotReadable) -> CheckResult:
    """The result of a check that could not read its objects."""
    return CheckResult("unknown", subject, why.reason.splitlines()[0], "use an account that may read it")


def items(listed: Any) -> list[Any]:
    """The objects of a list."""
    return list(sequence(mapping(listed).get("items")))


def named(listed: Any, name: str) -> Any:
    """The object of this name, or None."""
    return next((each for each in items(listed) if each["metadata"]["name"] == name), None)


def minor_of(facts: Facts) -> int:
    """The API server's minor version; 0: not known."""
    if isinstance(facts.version, NotReadable):
        return 0
    return int("".join(filter(str.isdigit, str(json.loads(facts.version).get("minor", "0")))) or "0")


def some_of(names: list[str]) -> str:
    """At most five names."""
    return ", ".join(sorted(names)[:5]) + (" and others" if len(names) > 5 else "")
