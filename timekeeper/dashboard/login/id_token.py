"""An ID token: signed by one of the provider's keys, for this client and this login, and valid now; and the
user that it names, as the API server reads it."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from joserfc import jws, jwt
from joserfc.errors import ClaimError, ExpiredTokenError, JoseError
from joserfc.jwk import ECKey, Key, KeySet, OKPKey, RSAKey
from joserfc.jws import JWSRegistry
from joserfc.util import base64_to_int

from timekeeper.runtime.oidc_settings import OidcSettings

LEEWAY_S = 30  # allowed difference between the provider's clock and ours
MAX_TOKEN = 64 * 1024
# All are signatures with a private key: never `none`, and never HMAC, to which the public key is enough.
ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "Ed25519", "EdDSA"),
)
_KINDS: Mapping[str, type[RSAKey | ECKey | OKPKey]] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}
_REGISTRY = JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)  # other fields are ignored
_WHY = {
    "iss": "it is from another issuer",
    "aud": "it is for another client",
    "exp": "it says not until when it is valid",
    "nbf": "it is not valid yet",
    "iat": "it is from the future",
}
_NOT_SIGNED = "the ID token is not valid: no key of the provider has signed it"

MAX_NAME = 512  # characters
MAX_GROUPS = 1_000
RESERVED = "system:"  # names that Kubernetes gives itself


class LoginRefusedError(Exception):
    """The provider or its token is not accepted. The text is a sentence for the visitor."""


class ProviderAwayError(Exception):
    """The provider does not answer as it should. The text says what was wrong, for the log."""


class UnknownKeyError(LoginRefusedError):
    """No key has the token's ID: the provider may have new ones."""


def read_keys(document: Mapping[str, Any]) -> KeySet:
    """The keys that sign, of a JWKS document; RSA from 2048 bits on (RFC 7518). Raises ValueError without
    any."""
    keys: list[Key] = []
    entries = document.get("keys")
    for entry in entries if isinstance(entries, list) else ():
        try:
            is_short = entry["kty"] == "RSA" and base64_to_int(entry["n"]).bit_length() < 2048
            if entry.get("use") in (None, "sig") and not is_short:
                keys.append(_KINDS[entry["kty"]].import_key(entry))
        except (JoseError, ValueError, TypeError, KeyError, AttributeError):
            continue  # of a kind that is not known
    if not keys:
        raise ValueError("its key set has no key that signs")
    return KeySet(keys)


def verified_claims(
    token: str, keys: KeySet, issuer: str, client_id: str, nonce: str, now_ms: int
) -> Mapping[str, Any]:
    """The claims of a valid token. Raises LoginRefusedError, of which UnknownKeyError is one."""
    claims = _signed(token, keys)
    registry = jwt.JWTClaimsRegistry(
        now=now_ms // 1000,
        leeway=LEEWAY_S,
        iss={"essential": True, "value": issuer},
        sub={"essential": True},
        aud={"essential": True, "value": client_id},
        exp={"essential": True},
        iat={"essential": True},
    )
    try:
        registry.validate(claims)
    except ExpiredTokenError as error:
        raise LoginRefusedError("the ID token is not valid: it has expired") from error
    except ClaimError as error:
        why = _WHY.get(error.claim, f"its claim {error.claim} is missing or wrong")
        raise LoginRefusedError(f"the ID token is not valid: {why}") from error
    if claims.get("nonce") != nonce:
        raise LoginRefusedError("the ID token is not valid: it belongs to another login")
    audiences = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
    if claims.get("azp", client_id if len(audiences) == 1 else None) != client_id:
        raise LoginRefusedError(f"the ID token is not valid: {_WHY['aud']}")
    return claims


def _signed(token: str, keys: KeySet) -> dict[str, Any]:
    """The claims, whose signature one of the keys verifies."""
    try:
        if len(token) > MAX_TOKEN:
            raise LoginRefusedError("the ID token is not valid: it is too long")
        header = jws.extract_compact(token.encode()).headers()
        for key in _candidates(keys, header.get("kid")):
            with suppress(JoseError):
                return jwt.decode(token, key, registry=_REGISTRY).claims
    except (JoseError, ValueError, RecursionError) as error:
        raise LoginRefusedError("the ID token is not valid: it cannot be read") from error
    raise LoginRefusedError(_NOT_SIGNED)


def _candidates(keys: KeySet, kid: object) -> Sequence[Key]:
    """The keys of this ID; all of them for a token that names none."""
    found = [key for key in keys if kid is None or key.kid == kid]
    if not found:
        raise UnknownKeyError(_NOT_SIGNED)
    return found


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
    elsewhere = claims.get("_claim_names")
    if isinstance(elsewhere, dict) and claim in elsewhere:
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
