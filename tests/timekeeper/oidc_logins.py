"""A provider of OpenID Connect beside the dashboard, and a browser that goes from one to the other."""

import hashlib
import hmac
import json
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import urllib3
from joserfc.jwk import RSAKey
from werkzeug.test import Client, TestResponse

from tests.support.oidc_issuer import base64url
from tests.support.waiting import eventually
from tests.timekeeper.dashboards import URL, Dashboards
from tests.timekeeper.oidc_provider import CLIENT, SECRET
from timekeeper.edge.http_client import trusting
from timekeeper.runtime.oidc_settings import OidcSettings


class OidcProvider:
    """The provider's process. A new start at the same address gives it a new key."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, 0
        self._running: subprocess.Popen[bytes] | None = None
        (folder / "secret").write_text(f"{SECRET}\n")
        self.user(preferred_username="ada", groups=["research"])
        self.start()

    def start(self) -> None:
        """Start it, with a new key."""
        (self.folder / "url").unlink(missing_ok=True)
        words = [sys.executable, "-m", "tests.timekeeper.oidc_provider", str(self.folder), str(self.port)]
        with (self.folder / "log").open("ab") as log:
            self._running = subprocess.Popen(words, stdout=log, stderr=log)
        eventually(self._is_there, "the provider")
        self.url = (self.folder / "url").read_text()
        self.port = urlsplit(self.url).port or 0

    def _is_there(self) -> bool:
        if self._running and self._running.poll() is not None:
            raise AssertionError((self.folder / "log").read_text())
        return (self.folder / "url").exists()

    def stop(self) -> None:
        """End it."""
        if self._running:
            self._running.kill()
            self._running.wait()
            self._running = None

    def user(self, **claims: Any) -> None:
        """Who logs in from now on."""
        (self.folder / "user.json").write_text(json.dumps(claims))

    def answer_next(self, id_token: str) -> None:
        """Somebody between both puts this token into its next answer."""
        (self.folder / "answer").write_text(id_token)

    def settings(self) -> OidcSettings:
        """The dashboard's."""
        return OidcSettings(
            issuer=self.url,
            client_id=CLIENT,
            client_secret_file=self.folder / "secret",
            ca_file=self.folder / "ca.crt",
            username_claim="preferred_username",
            username_prefix="oidc:",
            groups_claim="groups",
            groups_prefix="oidc:",
            dashboard_url=URL,
        )

    def forged(self, token: str, header: dict[str, str]) -> str:
        """The token's claims without a signature, or "signed" with the public key in PEM."""
        keys = self._get(f"{self.url}/keys").json()["keys"]
        key = RSAKey.import_key(next(each for each in keys if each["kty"] == "RSA"))
        head = base64url(json.dumps({**header, "kid": key.kid}).encode())
        signed = f"{head}.{token.split('.')[1]}"
        mac = hmac.new(key.as_pem(private=False), signed.encode(), hashlib.sha256).digest()
        return f"{signed}.{base64url(mac) if header['alg'] == 'HS256' else ''}"

    def _get(self, url: str) -> urllib3.BaseHTTPResponse:
        with urllib3.PoolManager(ssl_context=trusting((self.folder / "ca.crt").read_text())) as pool:
            return pool.request("GET", url)

    def visit(self, url: str, cookie: str = "") -> tuple[int, str, str]:
        """Status, where it leads and the cookie that it sets, of one address of the provider."""
        with urllib3.PoolManager(ssl_context=trusting((self.folder / "ca.crt").read_text())) as pool:
            answer = pool.request("GET", url, headers={"Cookie": cookie} if cookie else {}, redirect=False)
            answer.release_conn()
            set_ = answer.headers.get("Set-Cookie", "").partition(";")[0]
            return answer.status, answer.headers.get("Location", ""), set_

    def id_token(self, **asked: str) -> str:
        """The token of a whole login by a client's request for a code with this challenge."""
        with urllib3.PoolManager(ssl_context=trusting((self.folder / "ca.crt").read_text())) as pool:
            verifier, challenge = asked.pop("verifier"), asked.pop("challenge")
            form = {"redirect_uri": f"{URL}/login/callback", "client_id": CLIENT, **asked}
            begun = {"response_type": "code", "scope": "openid", "state": "s", **form,
                     "code_challenge": challenge, "code_challenge_method": "S256"}  # fmt: skip
            led = pool.request("GET", f"{self.url}/authorization", fields=begun, redirect=False)
            code = parse_qs(urlsplit(led.headers["Location"]).query)["code"][0]
            form |= {"grant_type": "authorization_code", "code": code, "code_verifier": verifier,
                     "client_secret": SECRET}  # fmt: skip
            answer = pool.request_encode_body("POST", f"{self.url}/token", form, encode_multipart=False)
            assert answer.status == 200, answer.data
            token: str = answer.json()["id_token"]
            return token


@dataclass
class LoggingIn:
    """A browser that has begun a login: where the provider leads it back to, and what it was asked."""

    client: Client
    back: str
    asked: dict[str, str]

    def finish(self, path: str = "") -> TestResponse:
        """Follow the provider's redirection, or to this path."""
        return self.client.get(path or self.back, base_url=URL, headers={"Sec-Fetch-Site": "cross-site"})


def dashboard(folder: Path, provider: OidcProvider, *, database_url: str = "", **changed: Any) -> Dashboards:
    """The dashboard with this provider, at the real time. ``database_url`` "": a database of its own."""
    made = Dashboards(folder, replace(provider.settings(), **changed), database_url)
    made.books.clock.at_ms = time.time_ns() // 1_000_000
    return made


def begin(provider: OidcProvider, client: Client, onward: str = "/namespaces/team-a") -> LoggingIn:
    """Log in at the provider, up to its redirection."""
    asked = client.get("/login/oidc", base_url=URL, query_string={"next": onward})
    assert asked.status_code == 303, asked.text
    status, back, _ = provider.visit(asked.headers["Location"])
    assert status == 302, (status, asked.headers["Location"])
    query = parse_qs(urlsplit(asked.headers["Location"]).query)
    return LoggingIn(client, back.removeprefix(URL), {name: values[0] for name, values in query.items()})
