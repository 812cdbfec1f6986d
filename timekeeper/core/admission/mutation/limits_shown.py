"""Variables that show a container an amount of its limits, where a node plugin does not set them itself."""

from timekeeper.core.admission.mutation.visible_devices import Variable
from timekeeper.core.admission.pods import sequence_of
from timekeeper.core.dialects import BY_NAME
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.quantity import integral
from timekeeper.core.values import GPURequest


def wanted(container: Json, request: GPURequest) -> tuple[Variable, ...]:
    """The variables that the container must have."""
    variables = BY_NAME[request.dialect].variables
    if not variables:
        return ()  # nearly always
    limits = mapping(mapping(container.get("resources")).get("limits"))
    return tuple(
        {"name": variable, "value": str(integral(limits[resource]))}
        for resource, variable in variables.items()
        if resource in limits
    )


def desired(container: Json, request: GPURequest) -> list[Json] | None:
    """The container's whole environment with these variables, once each; None where nothing changes."""
    right = wanted(container, request)
    if not right:
        return None
    present = sequence_of(container.get("env"))
    named = {each["name"] for each in right}
    if [each for each in present if each["name"] in named] == list(right):
        return None
    return [*(each for each in present if each["name"] not in named), *right]
