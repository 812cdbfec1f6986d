"""Who a verified ID token says that the visitor is, as the API server reads it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from timekeeper.dashboard.login.refusals import LoginRefusedError
from timekeeper.runtime.oidc_settings import OidcSettings

MAX_NAME = 512  # characters
MAX_GROUPS = 1_000
RESERVED = "system:"  # names that Kubernetes gives itself


@dataclass(frozen=True, slots=True)
class Person:
    """A user of Kubernetes, with the prefixes."""

    username: str
    groups: tuple[str, ...]


def person_of(claims: Mapping[str, Any], settings: OidcSettings) -> Person:
    """The user that the claims name. Raises LoginRefusedError."""
    username = _name(claims.get(settings.username_claim), settings.username_claim)
    if settings.username_claim == "email" and claims.get("email_verified") is not True:
        raise LoginRefusedError("the provider has not verified the address in the claim email")
    groups = _groups(claims, settings.groups_claim) if settings.groups_claim else []
    return Person(
        _allowed(settings.prefix + username, "--oidc-username-prefix"),
        tuple(_allowed(settings.groups_prefix + each, "--oidc-groups-prefix") for each in groups),
    )


def _groups(claims: Mapping[str, Any], claim: str) -> list[str]:
    """Each group once. One text is one group; without the claim there is none."""
    if claim in (claims.get("_claim_names") or {}):
        raise LoginRefusedError(
            f"the ID token has not the claim {claim} itself, because the user is in too many groups"
        )
    found = claims.get(claim, [])
    names = [found] if isinstance(found, str) else found
    if not isinstance(names, list) or len(names) > MAX_GROUPS:
        raise LoginRefusedError(f"the claim {claim} must be a list of at most {MAX_GROUPS} names")
    return list(dict.fromkeys(_name(each, claim) for each in names))


def _name(value: object, claim: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME or not value.isprintable():
        raise LoginRefusedError(f"the claim {claim} must have names of 1 to {MAX_NAME} printable characters")
    return value


def _allowed(name: str, flag: str) -> str:
    """A provider gives no name that is Kubernetes' own."""
    if name.startswith(RESERVED):
        raise LoginRefusedError(
            f"{name} begins with {RESERVED}, which is Kubernetes' own; {flag} avoids that"
        )
    return name
