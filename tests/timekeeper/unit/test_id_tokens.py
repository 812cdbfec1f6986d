"""ID tokens, good and hostile, as somebody may make them who is, or is not, the provider.

They are signed here by hand: OpenID Connect Core 1.0, section 3.1.3.7; RFC 7515 to 7519, 8037, 8725."""

import hashlib
import hmac
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from tests.support.oidc_issuer import base64url
from timekeeper.dashboard.login.id_token import (
    LoginRefusedError,
    UnknownKeyError,
    person_of,
    read_keys,
    verified_claims,
)
from timekeeper.runtime.oidc_settings import OidcSettings

ISSUER, CLIENT, NONCE = "https://login.test", "bursar", "n-1"
NOW_S = 1_800_000_000
CLAIMS = {"iss": ISSUER, "sub": "ada", "aud": CLIENT, "nonce": NONCE, "iat": NOW_S - 5, "exp": NOW_S + 600}

Json = Mapping[str, Any]
Sign = Callable[[bytes], bytes]

RSA = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
STRANGE = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
SHORT = rsa.generate_private_key(public_exponent=65_537, key_size=1024)  # noqa: S505 (so it is refused)
P256, P384 = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP384R1())
ED, OTHER_ED = (ed25519.Ed25519PrivateKey.generate() for _ in range(2))


def rsa_jwk(key: rsa.RSAPrivateKey, kid: str, **more: str) -> Json:
    numbers = key.public_key().public_numbers()
    n, e = (base64url(number.to_bytes((number.bit_length() + 7) // 8)) for number in (numbers.n, numbers.e))
    return {"kty": "RSA", "kid": kid, "n": n, "e": e, **more}


def ec_jwk(key: ec.EllipticCurvePrivateKey, kid: str, curve: str, size: int) -> Json:
    numbers = key.public_key().public_numbers()
    return {
        "kty": "EC",
        "kid": kid,
        "crv": curve,
        "x": base64url(numbers.x.to_bytes(size)),
        "y": base64url(numbers.y.to_bytes(size)),
    }


def ed_jwk(key: ed25519.Ed25519PrivateKey) -> Json:
    return {"kty": "OKP", "kid": "ed", "crv": "Ed25519", "x": base64url(key.public_key().public_bytes_raw())}


OTHER_JWK = ed_jwk(OTHER_ED)
KEYS = {
    "keys": [
        rsa_jwk(RSA, "rsa", use="sig", alg="RS256"),
        ec_jwk(P256, "p256", "P-256", 32),
        ec_jwk(P384, "p384", "P-384", 48),
        ed_jwk(ED),
        rsa_jwk(RSA, "any"),
        rsa_jwk(STRANGE, "encrypts", use="enc"),
        rsa_jwk(SHORT, "short"),
        {"kty": "oct", "kid": "oct", "k": base64url(b"k" * 32)},
        {"kty": "LATER", "kid": "later"},
    ]
}


def rs256(key: rsa.RSAPrivateKey) -> Sign:
    return lambda data: key.sign(data, padding.PKCS1v15(), hashes.SHA256())


def ps256(data: bytes) -> bytes:
    return RSA.sign(data, padding.PSS(padding.MGF1(hashes.SHA256()), 32), hashes.SHA256())


def es(key: ec.EllipticCurvePrivateKey, size: int, kind: hashes.HashAlgorithm) -> Sign:
    def sign(data: bytes) -> bytes:
        return b"".join(
            number.to_bytes(size) for number in decode_dss_signature(key.sign(data, ec.ECDSA(kind)))
        )

    return sign


def hs256(secret: bytes) -> Sign:
    return lambda data: hmac.new(secret, data, hashlib.sha256).digest()


def nothing(_: bytes) -> bytes:
    return b""


def token(payload: object = CLAIMS, header: object = None, sign: Sign | None = None, **more: Any) -> str:
    """``payload`` and ``header`` as JSON, or the texts themselves; ``more``: other claims, None: without."""
    if isinstance(payload, dict):
        payload = {name: value for name, value in {**payload, **more}.items() if value is not None}
    header = {"alg": "RS256", "kid": "rsa"} if header is None else header
    parts = (each if isinstance(each, str) else json.dumps(each) for each in (header, payload))
    signed = ".".join(base64url(part.encode()) for part in parts)
    return f"{signed}.{base64url((sign or rs256(RSA))(signed.encode()))}"


def head(alg: str, kid: str | None = "rsa", **more: Any) -> Json:
    return {"alg": alg, **({"kid": kid} if kid else {}), **more}


def pem(key: rsa.RSAPrivateKey) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, form)


def der(key: rsa.RSAPrivateKey) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.DER, form)


ES256, ES384 = es(P256, 32, hashes.SHA256()), es(P384, 48, hashes.SHA384())
DEEP = "[" * 40_000 + "]" * 40_000

GOOD = {
    "RS256": token(),
    "PS256": token(header=head("PS256", "any"), sign=ps256),
    "ES256": token(header=head("ES256", "p256"), sign=ES256),
    "ES384": token(header=head("ES384", "p384"), sign=ES384),
    "EdDSA": token(header=head("EdDSA", "ed"), sign=ED.sign),
    "Ed25519": token(header=head("Ed25519", "ed"), sign=ED.sign),
    "without a kid, each key is tried": token(header=head("ES384", None), sign=ES384),
    "another kind of token, fields that nobody knows": token(header=head("RS256", typ="x", x5t="y", new=[1])),
    "for us among others, who asked for it": token(aud=["another", CLIENT], azp=CLIENT),
    "a list of us alone": token(aud=[CLIENT]),
    "as late as clocks may differ": token(exp=NOW_S - 29),
    "as early as clocks may differ": token(iat=NOW_S + 29, nbf=NOW_S + 29),
    "times with fractions": token(iat=NOW_S - 0.5, exp=NOW_S + 0.5),
}
ENDLESS = "it says not until when it is valid"
NO_KEY, UNREADABLE = "no key of the provider has signed it", "it cannot be read"
HOSTILE = {
    # who signs, and how
    "none": (token(header=head("none"), sign=nothing), NO_KEY),
    "None": (token(header=head("None"), sign=nothing), NO_KEY),
    "no algorithm": (token(header={"kid": "rsa"}), UNREADABLE),
    "an empty algorithm": (token(header=head("")), NO_KEY),
    "a number": (token(header={"alg": 1, "kid": "rsa"}), NO_KEY),
    "HS256 with the public key in PEM": (token(header=head("HS256"), sign=hs256(pem(RSA))), NO_KEY),
    "HS256 with the public key in DER": (token(header=head("HS256"), sign=hs256(der(RSA))), NO_KEY),
    "HS256 with the key set's secret": (token(header=head("HS256", "oct"), sign=hs256(b"k" * 32)), NO_KEY),
    "a key that encrypts": (token(header=head("RS256", "encrypts"), sign=rs256(STRANGE)), NO_KEY),
    "a key that is too short": (token(header=head("RS256", "short"), sign=rs256(SHORT)), NO_KEY),
    "a key of its own": (token(header=head("Ed25519", "ed", jwk=OTHER_JWK), sign=OTHER_ED.sign), NO_KEY),
    "a key at an address": (token(header=head("RS256", jku="https://x.test"), sign=rs256(STRANGE)), NO_KEY),
    "a key that nobody knows": (token(header=head("RS256", "new"), sign=rs256(STRANGE)), NO_KEY),
    "another key's name": (token(header=head("RS256", "p256")), NO_KEY),
    "a kid that is no text": (token(header={"alg": "RS256", "kid": ["rsa"]}), NO_KEY),
    "an algorithm of another curve": (
        token(header=head("ES256", "p384"), sign=es(P384, 48, hashes.SHA256())),
        NO_KEY,
    ),
    "an algorithm that is not the key's": (token(header=head("PS256"), sign=ps256), NO_KEY),
    "a curve's algorithm with RSA": (token(header=head("ES256")), NO_KEY),
    "no signature": (token(sign=nothing), NO_KEY),
    "a signature of zeros": (token(header=head("ES256", "p256"), sign=lambda _: bytes(64)), NO_KEY),
    "a signature in DER": (
        token(header=head("ES256", "p256"), sign=lambda data: P256.sign(data, ec.ECDSA(hashes.SHA256()))),
        NO_KEY,
    ),
    "another payload": (
        ".".join((token().split(".")[0], token(sub="bob").split(".")[1], token().split(".")[2])),
        NO_KEY,
    ),
    "a field that must be understood": (token(header=head("RS256", crit=["new"], new=1)), NO_KEY),
    "a payload that is not encoded": (token(header=head("RS256", crit=["b64"], b64=False)), NO_KEY),
    # what it is
    "nothing": ("", UNREADABLE),
    "two parts": (".".join(token().split(".")[:2]), UNREADABLE),
    "four parts": (f"{token()}.x", UNREADABLE),
    "five parts": ("a.b.c.d.e", UNREADABLE),
    "no header": (f".{token().partition('.')[2]}", UNREADABLE),
    "a header that is no object": (token(header=[1]), UNREADABLE),
    "a header of a text": (token(header='"x"'), UNREADABLE),
    "no JSON": (token(header="{"), UNREADABLE),
    "a header without end": (token(header=DEEP[:8_000]), UNREADABLE),
    "signs of no alphabet": (token().replace(".", ".é", 1), UNREADABLE),
    "a lone surrogate": (token() + "\ud800", UNREADABLE),
    "too long": (token(more="x" * 64 * 1024), "it is too long"),
    "a payload that is no object": (token("[1]"), NO_KEY),
    "a payload that is no JSON": (token("{"), NO_KEY),
    "a payload without end": (token(DEEP[:40_000]), UNREADABLE),
    # for whom, and when
    "another issuer": (token(iss="https://evil.test"), "it is from another issuer"),
    "nearly the issuer": (token(iss=f"{ISSUER}/"), "it is from another issuer"),
    "a list of issuers": (token(iss=[ISSUER]), "it is from another issuer"),
    "no issuer": (token(iss=None), "it is from another issuer"),
    "another client": (token(aud="another"), "it is for another client"),
    "other clients": (token(aud=["another", "third"]), "it is for another client"),
    "other clients, asked for by us": (token(aud=["another"], azp=CLIENT), "it is for another client"),
    "nobody": (token(aud=[]), "it is for another client"),
    "no audience": (token(aud=None), "it is for another client"),
    "an audience that is no name": (token(aud={CLIENT: 1}), "it is for another client"),
    "for us and others, and nobody says who asked": (
        token(aud=[CLIENT, "another"]),
        "it is for another client",
    ),
    "for us, asked for by another": (token(azp="another"), "it is for another client"),
    "another login": (token(nonce="n-2"), "it belongs to another login"),
    "no login": (token(nonce=None), "it belongs to another login"),
    "several logins": (token(nonce=[NONCE]), "it belongs to another login"),
    "nobody's": (token(sub=None), "its claim sub is missing or wrong"),
    "a name that is empty": (token(sub=""), "its claim sub is missing or wrong"),
    "expired": (token(exp=NOW_S - 31), "it has expired"),
    "without end": (token(exp=None), ENDLESS),
    "an end that is a text": (token(exp=str(NOW_S + 600)), ENDLESS),
    "an end that is true": (token(exp=True), ENDLESS),
    "an end that is no number": (token(json.dumps({**CLAIMS, "exp": math.nan})), ENDLESS),
    "an end that never comes": (token(json.dumps({**CLAIMS, "exp": math.inf})), ENDLESS),
    "not valid yet": (token(nbf=NOW_S + 31), "it is not valid yet"),
    "from the future": (token(iat=NOW_S + 31), "it is from the future"),
    "of no time": (token(iat=None), "it is from the future"),
}


def verified(text: str, keys: Json = KEYS) -> Json:
    return verified_claims(text, read_keys(keys), ISSUER, CLIENT, NONCE, NOW_S * 1000)


@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")  # for Ed25519, and providers still use it
@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_a_token_of_the_provider_for_this_login_is_accepted(text: str) -> None:
    assert verified(text)["sub"] == "ada"


@pytest.mark.parametrize(("text", "said"), HOSTILE.values(), ids=HOSTILE)
def test_any_other_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(LoginRefusedError) as refused:
        verified(text)

    assert str(refused.value) == f"the ID token is not valid: {said}"


def test_a_token_by_a_key_that_nobody_knows_asks_for_the_newer_ones() -> None:
    text, _ = HOSTILE["a key that nobody knows"]

    with pytest.raises(UnknownKeyError):
        verified(text)
    newer = {"keys": [*KEYS["keys"], rsa_jwk(STRANGE, "new")]}
    assert verified(text, newer)["sub"] == "ada"


@pytest.mark.parametrize("place", range(9))
def test_a_set_without_a_key_that_signs_is_none(place: int) -> None:
    none: list[object] = [
        None,
        5,
        "x",
        {},
        [],
        [5, None, {}],
        [{"kty": "RSA"}],
        [{"kty": []}],
        KEYS["keys"][-4:],
    ]

    with pytest.raises(ValueError, match="no key that signs"):
        read_keys({"keys": none[place]})


@pytest.mark.parametrize("elsewhere", [5, "groups", [], ["groups"], {"other": "x"}], ids=str)
def test_only_a_mapping_says_that_claims_are_elsewhere(elsewhere: object) -> None:
    settings = OidcSettings(
        issuer=ISSUER, client_id=CLIENT, dashboard_url="https://b.test", groups_claim="groups"
    )

    assert person_of({"sub": "ada", "groups": ["a"], "_claim_names": elsewhere}, settings).groups == ("a",)
