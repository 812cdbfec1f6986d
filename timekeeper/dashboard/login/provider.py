"""Calls to the provider: what it says of itself, its keys, and the ID token for a code.

What it says is kept for ten minutes, its keys until a token names another one. At most four threads of a
process wait for it at a time, so that the other pages go on while it is away.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping
from threading import BoundedSemaphore, Lock
from typing import Any
from urllib.parse import quote, urlencode

import orjson
from joserfc.jwk import KeySet

from timekeeper.dashboard.login.id_token import (
    LoginRefusedError,
    ProviderAwayError,
    UnknownKeyError,
    read_keys,
    verified_claims,
)
from timekeeper.edge.clock import monotonic_ms
from timekeeper.edge.http_client import (
    HttpClient,
    sentence,
    server_and_path,
    system_context,
    trusting,
)
from timekeeper.log import log
from timekeeper.runtime.file_watch import FileWatch
from timekeeper.runtime.oidc_settings import OidcSettings
from timekeeper.runtime.proxies import connecting_out
from timekeeper.runtime.tls import ca_text

Json = Mapping[str, Any]

_DISCOVERY = "/.well-known/openid-configuration"
_FRESH_MS = 600_000
_KEYS_INTERVAL_MS = 10_000  # two readings of the keys because of an unknown one
_AT_A_TIME = 4
_WAIT_S = 2.0
ANSWER_S, _CONNECT_S = 5.0, 3.0
_MAX_BYTES = 512 * 1024


class Provider:
    """One per process; its threads share it. ``clock``: milliseconds since 1970. ``within_s``: the most for
    an answer as a whole."""

    def __init__(self, settings: OidcSettings, clock: Callable[[], int], within_s: float = ANSWER_S) -> None:
        self._settings, self._clock, self._within_s = settings, clock, within_s
        ca = settings.ca_file
        self._context = FileWatch(
            () if ca is None else (ca,),
            lambda: system_context() if ca is None else trusting(ca_text(ca)),
            monotonic_ms,
            log,
        )
        self._seats, self._lock = BoundedSemaphore(_AT_A_TIME), Lock()
        self._about: Json = {}
        self._about_until_ms = 0
        self._keys: KeySet | None = None
        self._keys_until_ms = 0

    def authorization_url(self, state: str, nonce: str, challenge: str) -> str:
        """Where a login begins. Raises ProviderAwayError."""
        query = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": self._settings.callback,
            "scope": self._settings.scopes,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        return _with_query(self._endpoint("authorization_endpoint"), query)

    def logout_url(self) -> str:
        """Where the provider's own session ends; "" if it says of no such place, or is away."""
        try:
            if not self._described().get("end_session_endpoint"):
                return ""
            return _with_query(
                self._endpoint("end_session_endpoint"), {"client_id": self._settings.client_id}
            )
        except ProviderAwayError:
            return ""

    def claims(self, code: str, verifier: str, nonce: str) -> Json:
        """The claims of the ID token that the provider gives for a code. Raises LoginRefusedError or
        ProviderAwayError."""
        token = self._id_token(code, verifier)
        now_ms, issuer, client = self._clock(), self._settings.issuer, self._settings.client_id
        try:
            return verified_claims(token, self._known_keys(), issuer, client, nonce, now_ms)
        except UnknownKeyError:
            return verified_claims(token, self._newer_keys(), issuer, client, nonce, now_ms)

    def _id_token(self, code: str, verifier: str) -> str:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._settings.callback,
            "code_verifier": verifier,
        }
        headers = {}
        client, secret = self._settings.client_id, self._secret()
        methods = self._described().get("token_endpoint_auth_methods_supported")
        if secret and not (isinstance(methods, list) and methods and "client_secret_basic" not in methods):
            pair = f"{quote(client, safe='')}:{quote(secret, safe='')}"
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": client, **({"client_secret": secret} if secret else {})}
        status, answer = self._call("POST", self._endpoint("token_endpoint"), headers, form)
        if 400 <= status < 500:
            said = " ".join(str(answer.get(each, "")) for each in ("error", "error_description")).strip()
            raise LoginRefusedError(f"the provider does not accept the login: {said[:200] or status}")
        token = answer.get("id_token")
        if status != 200 or not isinstance(token, str):
            raise ProviderAwayError(f"its answer {status} has no ID token")
        return token

    def _secret(self) -> str:
        file = self._settings.client_secret_file
        try:
            return "" if file is None else file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise ProviderAwayError(f"--oidc-client-secret-file cannot be read: {error}") from error

    def _known_keys(self) -> KeySet:
        keys = self._keys
        return self._newer_keys() if keys is None else keys

    def _newer_keys(self) -> KeySet:
        """The keys of this moment, unless they were read a moment ago."""
        with self._lock:
            if self._keys is None or monotonic_ms() >= self._keys_until_ms:
                found = self._get(self._endpoint("jwks_uri"))
                try:
                    self._keys = read_keys(found)
                except ValueError as error:
                    raise ProviderAwayError(str(error)) from error
                self._keys_until_ms = monotonic_ms() + _KEYS_INTERVAL_MS
            return self._keys

    def _endpoint(self, name: str) -> str:
        url = self._described().get(name)
        if not isinstance(url, str) or not url.startswith("https://"):
            raise ProviderAwayError(f"its {name} is no https:// URL")
        return url

    def _described(self) -> Json:
        """What it says of itself."""
        if monotonic_ms() >= self._about_until_ms:
            found = self._get(self._settings.issuer.rstrip("/") + _DISCOVERY)
            if found.get("issuer") != self._settings.issuer:
                raise ProviderAwayError(f"it says that its issuer is {found.get('issuer')!r}")
            self._about, self._about_until_ms = found, monotonic_ms() + _FRESH_MS
        return self._about

    def _get(self, url: str) -> Json:
        status, answer = self._call("GET", url, {})
        if status != 200:
            raise ProviderAwayError(f"{url} answers {status}")
        return answer

    def _call(
        self, method: str, url: str, headers: Json, form: Mapping[str, str] | None = None
    ) -> tuple[int, Json]:
        context = self._context()
        if context is None:
            raise ProviderAwayError("--oidc-ca-file cannot be read")
        if not self._seats.acquire(timeout=_WAIT_S):
            raise ProviderAwayError("other logins wait for its answer")
        try:
            server, path = server_and_path(url)
            sent = {"Accept": "application/json", "User-Agent": "bursar", **headers}
            body = None if form is None else urlencode(form).encode()
            if body is not None:
                sent["Content-Type"] = "application/x-www-form-urlencoded"
            client = HttpClient(server, connecting_out(lambda: context), keep=0, connect_s=_CONNECT_S)
            answer = client.call(
                method, path, sent, body, within_s=self._within_s, repeat=False, most=_MAX_BYTES
            )
            return answer.status, _object(answer.body)
        except (OSError, ValueError) as error:
            raise ProviderAwayError(f"{url}: {sentence(error, self._within_s)}") from error
        finally:
            self._seats.release()


def _object(data: bytes) -> Json:
    """The JSON object; without a field for anything else."""
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _with_query(url: str, query: Mapping[str, str]) -> str:
    return f"{url}{'&' if '?' in url else '?'}{urlencode(query)}"
