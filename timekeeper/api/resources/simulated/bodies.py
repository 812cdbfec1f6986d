"""The body of a simulation: a manifest, and the claims that its pods use."""

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Struct
from msgspec.structs import replace

from timekeeper.api.http.bodies import Body
from timekeeper.api.resources.grants import Namespace
from timekeeper.core.kube.owned_pods import GROUPS, is_owner
from timekeeper.runtime.http.problem_details import bad
from timekeeper.wire.forms import allowed, items
from timekeeper.wire.values import Version

Json = Mapping[str, Any]

MAX_PODS = 50
MAX_LEVELS = 100  # of a manifest or a claim; no type of the API is nested more deeply
_MAX_FIELD = 253  # letters of a field that a refusal names
_KINDS = ", ".join(["Pod of v1", *(f"{kind} of {group}" for kind, group in GROUPS.items())])


class SimulationBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`manifest`: a Pod of `namespace`, or a Deployment, Job or other owner of 1 to 50 pods; `claims`:
    ResourceClaims and ResourceClaimTemplates that they use, at most 50, where these do not exist."""

    version: Version
    namespace: Namespace
    manifest: Annotated[dict[str, Any], allowed("it must be a Pod or an owner of pods")]
    claims: Annotated[
        list[Annotated[dict[str, Any], allowed("it must be a ResourceClaim or a ResourceClaimTemplate")]],
        items(0, MAX_PODS, f"it must be a list of at most {MAX_PODS} claims and templates"),
    ] = []


BODY = Body(SimulationBody)


def read_simulation(body: bytes) -> SimulationBody:
    """Parse the body. Raises a Problem that names the field."""
    asked = BODY.read(body)
    raw, namespace = asked.manifest, asked.namespace
    _check_values("manifest", raw)
    for at, claim in enumerate(asked.claims):
        _check_values(f"claims[{at}]", claim)
    if not is_pod(raw) and not is_owner(raw):
        raise bad("manifest", f"its kind must be one of these: {_KINDS}")
    metadata = raw.get("metadata", {})
    if not isinstance(metadata, dict):
        raise bad("manifest.metadata", "it must be an object")
    if (metadata.get("namespace") or namespace) != namespace:
        raise bad("manifest.metadata.namespace", f"it must be {namespace}, or absent")
    name = metadata.get("name") or metadata.get("generateName") or raw["kind"].lower()
    if not isinstance(name, str) or len(name) > 253:
        raise bad("manifest.metadata.name", "it must be a name of at most 253 characters")
    manifest = {**raw, "metadata": {**metadata, "name": name}}
    return replace(asked, manifest=manifest)


def _check_values(field: str, value: object) -> None:
    """Raises a Problem for what the JSON of the roles that are asked next does not hold."""
    level = [(field, value)]
    for _ in range(MAX_LEVELS):
        inner: list[tuple[str, object]] = []
        for place, here in level:
            if isinstance(here, dict):
                inner += [(f"{place}.{name}"[:_MAX_FIELD], member) for name, member in here.items()]
            elif isinstance(here, list):
                inner += [(f"{place}[{at}]"[:_MAX_FIELD], member) for at, member in enumerate(here)]
            elif isinstance(here, int | float) and not -(2**63) <= here < 2**64:
                raise bad(place, "it must be a number of 64 bits")
        level = inner
    if level:
        raise bad(field, f"it must not be nested more than {MAX_LEVELS} levels deep")


def is_pod(manifest: Json) -> bool:
    """Whether the manifest is of a Pod."""
    return (manifest.get("apiVersion"), manifest.get("kind")) == ("v1", "Pod")
