"""An ID token: signed by one of the provider's keys, for this client and this login, and valid now."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from joserfc import jws, jwt
from joserfc.errors import ClaimError, ExpiredTokenError, JoseError
from joserfc.jwk import ECKey, Key, KeySet, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from timekeeper.dashboard.login.refusals import LoginRefusedError

LEEWAY_S = 30  # allowed difference between the provider's clock and ours
MAX_TOKEN = 64 * 1024
# All are signatures with a private key: never `none`, and never HMAC, to which the public key is enough.
ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "Ed25519", "EdDSA"),
)
_REGISTRY = JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)  # other fields are ignored

_WHY = {
    "iss": "it is from another issuer",
    "aud": "it is for another client",
    "nonce": "it belongs to another login",
    "exp": "it says not until when it is valid",
    "nbf": "it is not valid yet",
    "iat": "it is from the future",
}


_NOT_SIGNED = "the ID token is not valid: no key of the provider has signed it"


class UnknownKeyError(LoginRefusedError):
    """No key has the token's ID: the provider may have new ones."""


def read_keys(document: Mapping[str, Any]) -> KeySet:
    """The keys that sign, of a JWKS document. Raises ValueError without any."""
    keys: list[Key] = []
    for each in document.get("keys") or ():
        try:
            key = KeySet.registry_cls.import_key(each)
        except (JoseError, ValueError, TypeError, KeyError, AttributeError):
            continue  # of a kind that is not known
        if isinstance(key, RSAKey | ECKey | OKPKey) and each.get("use") in (None, "sig"):
            keys.append(key)
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
        nonce={"essential": True, "value": nonce},
    )
    try:
        registry.validate(claims)
    except ExpiredTokenError as error:
        raise LoginRefusedError("the ID token is not valid: it has expired") from error
    except ClaimError as error:
        why = _WHY.get(error.claim, f"its claim {error.claim} is missing or wrong")
        raise LoginRefusedError(f"the ID token is not valid: {why}") from error
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
    except (JoseError, ValueError) as error:
        raise LoginRefusedError("the ID token is not valid: it cannot be read") from error
    raise LoginRefusedError(_NOT_SIGNED)


def _candidates(keys: KeySet, kid: object) -> Sequence[Key]:
    """The keys of this ID; all of them for a token that names none."""
    found = [key for key in keys if kid is None or key.kid == kid]
    if not found:
        raise UnknownKeyError(_NOT_SIGNED)
    return found
