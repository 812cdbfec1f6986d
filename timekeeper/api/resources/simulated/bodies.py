"""The body of a simulation: pods, owners of pods and claims that do not exist, and perhaps another budget."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, TypedDict

from timekeeper.api.http.bodies import Body
from timekeeper.api.resources.grants import Namespace
from timekeeper.core.forms import CLOSED, Form, items
from timekeeper.core.kube.owned_pods import GROUPS, is_owner
from timekeeper.core.object_names import timestamp
from timekeeper.core.wire import Version
from timekeeper.runtime.http.problem_details import bad

MAX_PODS = 50
MAX_BUDGET = 16 * 1024  # characters of an entry
_PODS = f"it must be a list of 1 to {MAX_PODS} pods"


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """Pods of one namespace that do not exist, complete enough for a scheduler; ``budget``: the text of the
    namespace's entry that is supposed, None: the present one."""

    namespace: str
    pods: tuple[Mapping[str, Any], ...]
    budget: str | None
    created: str  # when all are created
    claims: tuple[Mapping[str, Any], ...] = ()  # and templates of claims, of which there are none
    owners: tuple[Mapping[str, Any], ...] = ()  # of kinds that create pods, of which there are none


class SimulationBody(TypedDict):
    """`pods`: Pods of `namespace`, with those of the owners 1 to 50; `owners`: Jobs, JobSets and other owners
    of gangs, whose pods come after these; `claims`: ResourceClaims and ResourceClaimTemplates that they use,
    at most 50, where these do not exist; `budget`: the text of its entry in `bursar-budgets` that is
    supposed, absent: the present one."""

    version: Version
    namespace: Namespace
    pods: Annotated[
        list[Annotated[dict[str, Any], Form({}, "it must be a Pod")]],
        items(0, MAX_PODS, _PODS),
    ]
    owners: NotRequired[
        Annotated[
            list[Annotated[dict[str, Any], Form({}, "it must be an owner of pods")]],
            items(0, MAX_PODS, f"it must be a list of at most {MAX_PODS} owners of pods"),
        ]
    ]
    claims: NotRequired[
        Annotated[
            list[
                Annotated[dict[str, Any], Form({}, "it must be a ResourceClaim or a ResourceClaimTemplate")]
            ],
            items(0, MAX_PODS, f"it must be a list of at most {MAX_PODS} claims and templates"),
        ]
    ]
    budget: NotRequired[
        Annotated[
            str | None,
            Form(
                {"maxLength": MAX_BUDGET},
                f"it must be the text of a budget entry, of at most {MAX_BUDGET} characters",
                lambda text: len(text) <= MAX_BUDGET,
            ),
        ]
    ]


BODY = Body(SimulationBody, Form(CLOSED))


def read_simulation(body: bytes, now_ms: int) -> SimulationRequest:
    """Parse the body; the pods are as young as now. Raises a Problem that names the field."""
    asked, created = BODY.read(body), timestamp(now_ms)
    namespace, owners = asked["namespace"], tuple(asked.get("owners", ()))
    if not asked["pods"] and not owners:
        raise bad("pods", _PODS)
    pods = tuple(
        simulated_pod(each, at, namespace, created, f"pods[{at}]") for at, each in enumerate(asked["pods"])
    )
    owners = tuple(_owner(each, f"owners[{at}]", namespace) for at, each in enumerate(owners))
    return SimulationRequest(
        namespace, pods, asked.get("budget"), created, tuple(asked.get("claims", ())), owners
    )


def _owner(raw: Mapping[str, Any], where: str, namespace: str) -> dict[str, Any]:
    """The owner, with a name."""
    if not is_owner(raw):
        known = ", ".join(f"{kind} of {group}" for kind, group in GROUPS.items())
        raise bad(where, f"its kind must be one of these: {known}")
    metadata = raw.get("metadata", {})
    if not isinstance(metadata, dict):
        raise bad(f"{where}.metadata", "it must be an object")
    _check_namespace(metadata, where, namespace)
    name = metadata.get("name") or metadata.get("generateName") or raw["kind"].lower()
    return {**raw, "metadata": {**metadata, "name": name}}


def _check_namespace(metadata: Mapping[str, Any], where: str, namespace: str) -> None:
    if metadata.get("namespace", namespace) != namespace:
        raise bad(f"{where}.metadata.namespace", f"it must be {namespace}, or absent")


def simulated_pod(
    raw: Mapping[str, Any], at: int, namespace: str, created: str, where: str
) -> Mapping[str, Any]:
    """The pod as the scheduler sees it. ``where``: its place in the body."""
    metadata, spec = raw.get("metadata", {}), raw.get("spec")
    if not isinstance(metadata, dict):
        raise bad(f"{where}.metadata", "it must be an object")
    if not isinstance(spec, dict) or not isinstance(spec.get("containers"), list):
        raise bad(f"{where}.spec", "it must be the spec of a Pod, with containers")
    _check_namespace(metadata, where, namespace)
    name = metadata.get("name") or f"{metadata.get('generateName') or 'pod-'}{at}"
    if not isinstance(name, str) or len(name) > 253:
        raise bad(f"{where}.metadata.name", "it must be a name of at most 253 characters")
    known = {"name": name, "namespace": namespace, "uid": f"simulated-{at}", "creationTimestamp": created}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**{k: v for k, v in metadata.items() if k != "resourceVersion"}, **known},
        "spec": spec,
    }
