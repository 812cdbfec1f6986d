"""The form by which a lead passes a part of a group's budget on to one of its namespaces."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from timekeeper.dashboard.api_caller import ApiCaller, ApiRefusedError
from timekeeper.dashboard.visits import segment

FIELDS = ("namespace", "gpuHours", "reason")


@dataclass(frozen=True, slots=True)
class PassingOnForm:
    """What a visitor has filled in. ``key``: names the grant, so that a form sent twice gives it once;
    ``faults``: what is wrong, by field, "" for what no field is about; ``status``: of the answer."""

    key: str
    texts: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    status: int = 200


def empty_form() -> PassingOnForm:
    """A form for a new grant."""
    return PassingOnForm(secrets.token_hex(16))


def filled_form(given: Mapping[str, str]) -> PassingOnForm:
    """The form as it was sent."""
    return PassingOnForm(given.get("key", ""), {name: given.get(name, "").strip() for name in FIELDS})


def pass_on(api: ApiCaller, group: str, form: PassingOnForm) -> PassingOnForm | None:
    """Pass the amount on. The form with what is wrong if the API refuses; None: it is done."""
    try:
        path = f"/v1/groups/{segment(group)}/grants"
        api.post(path, dict(form.texts), Idempotency_Key=form.key)
    except ApiRefusedError as error:
        where = error.field if error.field in FIELDS else ""
        return replace(form, faults={where: error.sentence if where else error.detail}, status=error.status)
    return None
