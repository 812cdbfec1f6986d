"""An identity provider: an issuer of OpenID Connect on loopback, with signed ID tokens.

OpenID Connect Core 1.0, section 2; Discovery 1.0, section 4; RFC 7515 (JWS), 7517 (JWK) and 7518 (RS256)."""

import base64
import json
import time
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.support.http_server import JsonHandler, Served
from tests.support.tls import Tls

CLIENT = "kubernetes"  # the audience of the tokens
_KEY = "key-1"
_LIFE_S = 600


class Issuer(Served):
    """Serves its discovery document and its key while the context lasts; ``ca_file``: the CA of its
    certificate."""

    def __init__(self, folder: Path) -> None:
        tls = Tls(folder)
        self.ca_file = tls.file("ca.crt")
        self._key = new_key()
        documents: dict[str, Any] = {"/keys": {"keys": [_public(self._key)]}}

        class Documents(JsonHandler):
            def do_GET(self) -> None:
                self.answer(200 if self.path in documents else 404, documents.get(self.path))

        super().__init__(Documents, tls.server())
        documents["/.well-known/openid-configuration"] = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "jwks_uri": f"{self.url}/keys",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
        }

    def token(self, user: str, *groups: str, key: rsa.RSAPrivateKey | None = None, **claims: Any) -> str:
        """An ID token of a user; with other claims, or signed by another key, on request."""
        now_s = int(time.time())
        payload = {
            "iss": self.url,
            "aud": CLIENT,
            "sub": user,
            "groups": groups,
            "iat": now_s,
            "exp": now_s + _LIFE_S,
            **claims,
        }
        signed = f"{_encoded({'alg': 'RS256', 'kid': _KEY})}.{_encoded(payload)}"
        signature = (key or self._key).sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{base64url(signature)}"


def new_key() -> rsa.RSAPrivateKey:
    """A key that signs tokens."""
    return rsa.generate_private_key(public_exponent=65_537, key_size=2048)


def _public(key: rsa.RSAPrivateKey) -> dict[str, str]:
    numbers = key.public_key().public_numbers()
    n, e = (base64url(each.to_bytes((each.bit_length() + 7) // 8)) for each in (numbers.n, numbers.e))
    return {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": _KEY, "n": n, "e": e}


def _encoded(content: object) -> str:
    return base64url(json.dumps(content).encode())


def base64url(data: bytes) -> str:
    """Base64 as tokens have it, without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
