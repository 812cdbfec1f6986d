"""Whether every aggregated API answers: one that does not makes discovery incomplete for everyone."""

from collections.abc import Iterator, Mapping
from typing import Any

from timekeeper.cli.doctor.check_result import CheckResult
from timekeeper.cli.doctor.facts import Facts, NotReadable
from timekeeper.cli.doctor.reading import items, unknown
from timekeeper.core.json_values import mapping, sequence
from timekeeper.core.names import API_SERVICE

_SUBJECT = "aggregated APIs"


def api_services(facts: Facts) -> Iterator[CheckResult]:
    """Each APIService is available. Ours need not exist."""
    if isinstance(facts.api_services, NotReadable):
        yield unknown(_SUBJECT, facts.api_services)
        return
    away = {each["metadata"]["name"]: why for each in items(facts.api_services) if (why := _trouble(each))}
    for name, why in away.items():
        sentence = (
            f"{name} is not available ({why}), so discovery is incomplete and no namespace can be deleted"
        )
        command = f"kubectl describe apiservice {name}"
        if name == API_SERVICE:
            where = f"-n {facts.system_namespace} -l app.kubernetes.io/component=timekeeper"
            command = f"kubectl get pods {where}; or give it up: kubectl delete apiservice {name}"
        yield CheckResult("error", _SUBJECT, sentence, command)
    if not away:
        yield CheckResult("ok", _SUBJECT, "all are available")


def _trouble(api_service: Mapping[str, Any]) -> str:
    """Why it is not available; "" if it is."""
    conditions = sequence(mapping(api_service.get("status")).get("conditions"))
    found = next((mapping(each) for each in conditions if mapping(each).get("type") == "Available"), {})
    if found.get("status") == "True":
        return ""
    return str(found.get("message") or found.get("reason") or "it was never looked at")
