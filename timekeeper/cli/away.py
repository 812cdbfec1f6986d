"""What to say where the timekeeper does not answer: since when, what goes on without it, and what to do."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from timekeeper.cli.kubectl import Kubectl
from timekeeper.cli.output import AwayError, CommandError
from timekeeper.core.json_values import mapping, sequence
from timekeeper.core.texts import WITHOUT_TIMEKEEPER, WORK_WITHOUT_TIMEKEEPER, age, moment
from timekeeper.edge.clock import now_ms

_PODS = "app.kubernetes.io/component=timekeeper"
_WORK = f"{', '.join(WORK_WITHOUT_TIMEKEEPER[:-1])} and {WORK_WITHOUT_TIMEKEEPER[-1]} need no timekeeper."


def away(kubectl: Kubectl, namespace: str, error: CommandError) -> AwayError:
    """The failure with all of it. ``namespace``: Bursar's."""
    since = " ".join(_since(kubectl, namespace)) or "Kubernetes does not say since when."
    do = (
        f"Do: kubectl describe pods -n {namespace} -l {_PODS};"
        f" kubectl logs -n {namespace} -l {_PODS} --tail=50; kubectl bursar doctor"
    )
    why = error.message.splitlines()[0].rstrip(".")
    lines = (f"the timekeeper does not answer: {why}.", since, WITHOUT_TIMEKEEPER, _WORK, do)
    return AwayError("\n".join(lines))


def _since(kubectl: Kubectl, namespace: str) -> Iterator[str]:
    """A sentence for each pod of the timekeeper; none where kubectl cannot tell."""
    try:
        listed = kubectl.get("pods", "-n", namespace, "-l", _PODS)
    except CommandError:
        return
    for pod in sequence(mapping(listed).get("items")):
        yield _of_pod(mapping(pod))


def _of_pod(pod: Any) -> str:
    status = mapping(pod.get("status"))
    name = mapping(pod.get("metadata")).get("name")
    conditions = tuple(map(mapping, sequence(status.get("conditions"))))
    ready: Any = next((each for each in conditions if each.get("type") == "Ready"), {})
    if ready.get("status") == "True":
        return f"Pod {name} is ready, so the way to it is cut, or it has stopped just now."
    changed = str(ready.get("lastTransitionTime") or "")
    if not changed:
        return f"Pod {name} is {status.get('phase', 'Pending')}{_unscheduled(conditions)}."
    at_ms = int(datetime.fromisoformat(changed).timestamp() * 1000)
    lasts = age(now_ms() - at_ms)
    why = f": {ready['message']}" if ready.get("message") else ""
    return f"Pod {name} is not ready since {moment(at_ms)}, for {lasts}{why}."


def _unscheduled(conditions: Sequence[Any]) -> str:
    """Why it has no node; of a volume that waits also what to do."""
    said = (condition.get("message") for condition in conditions if condition.get("type") == "PodScheduled")
    why = str(next(said, None) or "").rstrip(".")
    volume = "; see kubectl get storageclass: without a default one timekeeper.storage.className names it"
    return f": {why}{volume if 'PersistentVolumeClaim' in why else ''}" if why else ""
