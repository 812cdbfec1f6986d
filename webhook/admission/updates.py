"""Updates that can never go on: they need more pods at one time than a cap allows, and let no old pod go
first.

Sources: the API types of Kubernetes 1.36 (apps/v1), argoproj/argo-rollouts at 0305532, the CloneSet of
openkruise/kruise, and github.com/ray-project/kuberay/ray-operator v1.4.2, with their defaults.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from timekeeper.core.gang_owners import pods_of_ray_cluster
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.rating.held import cards_text, least_milli
from timekeeper.core.standings import Caps
from timekeeper.core.values import GPURequest

_PERCENT = re.compile(r"([0-9]{1,5})%", re.ASCII)
_CANARY = "canary: {maxSurge: 0, maxUnavailable: 1} the old pod goes first"


@dataclass(frozen=True, slots=True)
class _Update:
    """``field``: what makes it so, and ``instead`` what mends it; ``pods``: templates, and how many pods of
    each it needs at one time."""

    field: str
    instead: str
    pods: Iterable[tuple[Json, int]]


def stuck_update(
    group: str, kind: str, spec: Json, caps: Caps, request_of: Callable[[Json], GPURequest | None]
) -> Iterator[str]:
    """A warning for each cap that an update of the workload would wait for. ``request_of``: what a template's
    pods ask for; it raises MalformedError for what is no template."""
    of_kind = _KINDS.get((group, kind)) if caps.is_set else None
    update = of_kind(spec) if of_kind else None
    if update is None:
        return
    least = sum(_least_milli(template, count, request_of) for template, count in update.pods)
    for whose, most in (
        ("the namespace", caps.own.total_milli),
        (f"group {caps.group}", caps.of_group.total_milli),
    ):
        if most and least > most:
            yield (
                f"{update.field}: an update needs {cards_text(least)} GPUs at one time, and the budget of"
                f" {whose} has maxGPUs {cards_text(most)}, so it waits for ever; with {update.instead}"
            )


def _least_milli(template: Json, count: int, request_of: Callable[[Json], GPURequest | None]) -> int:
    """What the template's pods need at least together; a claim that all of them share counts once."""
    spec = mapping(template.get("spec"))
    one = request_of(template) if spec else None
    if one is None:
        return 0
    claims = [mapping(claim) for claim in sequence(spec.get("resourceClaims"))]
    own = [claim for claim in claims if not claim.get("resourceClaimName")]
    each = one if own == claims else request_of({**template, "spec": {**spec, "resourceClaims": own}})
    return least_milli(one) + (count - 1) * (least_milli(each) if each is not None else 0)


def _of_deployment(spec: Json) -> _Update | None:
    strategy = mapping(spec.get("strategy"))
    if strategy.get("type", "RollingUpdate") != "RollingUpdate":
        return None
    instead = "rollingUpdate: {maxSurge: 0, maxUnavailable: 1} the old pod goes first"
    return _rolling(spec, mapping(strategy.get("rollingUpdate")), "25%", "25%", "spec.strategy", instead)


def _of_rollout(spec: Json) -> _Update | None:
    """Blue and green are there together; so are a canary with a part of the traffic, and all stable pods."""
    strategy = mapping(spec.get("strategy"))
    canary = mapping(strategy.get("canary"))
    field, instead = "spec.strategy", f"strategy.{_CANARY}"
    keeps_all = canary.get("trafficRouting") and canary.get("dynamicStableScale") is not True
    if strategy.get("blueGreen") or keeps_all:
        return _Update(field, instead, [(mapping(spec.get("template")), 2 * _replicas(spec))])
    return _rolling(spec, canary, "25%", "25%", field, instead)


def _of_clone_set(spec: Json) -> _Update | None:
    strategy = mapping(spec.get("updateStrategy"))
    if strategy.get("type") == "InPlaceOnly":
        return None
    instead = "updateStrategy: {maxSurge: 0} the old pod goes first"
    return _rolling(spec, strategy, 0, "20%", "spec.updateStrategy", instead)


def _of_ray_service(spec: Json) -> _Update | None:
    """A second cluster is made beside the first."""
    if mapping(spec.get("upgradeStrategy")).get("type") == "None":
        return None
    sets = pods_of_ray_cluster(mapping(spec.get("rayClusterConfig")), ("spec", "rayClusterConfig"))
    instead = "upgradeStrategy: {type: None} none is made beside the first, and you delete it yourself"
    return _Update("spec.upgradeStrategy", instead, [(pods.template, 2 * pods.count) for pods in sets])


_KINDS: Mapping[tuple[str, str], Callable[[Json], _Update | None]] = {
    ("apps", "Deployment"): _of_deployment,
    ("argoproj.io", "Rollout"): _of_rollout,
    ("apps.kruise.io", "CloneSet"): _of_clone_set,
    ("ray.io", "RayService"): _of_ray_service,
}


def _rolling(
    spec: Json, rolling: Json, surge: object, unavailable: object, field: str, instead: str
) -> _Update | None:
    """One pod more, if no old pod goes before a new one is available: a part of the replicas is rounded up
    for more pods, and down for fewer. ``surge`` and ``unavailable``: the defaults."""
    replicas = _replicas(spec)
    more = _resolved(rolling.get("maxSurge", surge), replicas, 99)
    fewer = _resolved(rolling.get("maxUnavailable", unavailable), replicas, 0)
    if replicas < 1 or more < 1 or fewer != 0:
        return None
    return _Update(field, instead, [(mapping(spec.get("template")), replicas + 1)])


def _replicas(spec: Json) -> int:
    replicas = spec.get("replicas", 1)
    return replicas if type(replicas) is int else 0


def _resolved(amount: object, replicas: int, rounding: int) -> int:
    """-1 for what the API server refuses."""
    if type(amount) is int:
        return amount
    part = _PERCENT.fullmatch(amount) if isinstance(amount, str) else None
    return (int(part[1]) * replicas + rounding) // 100 if part else -1
