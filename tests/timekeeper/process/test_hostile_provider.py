"""What a provider of OpenID Connect may say of itself: a login is refused, or the provider counts as away,
with the reason."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_server import JsonHandler, Served
from tests.support.tls import Tls
from timekeeper.dashboard.login.id_token import LoginRefusedError, ProviderAwayError
from timekeeper.dashboard.login.provider import Provider
from timekeeper.runtime.oidc_settings import OidcSettings

DISCOVERY = "/.well-known/openid-configuration"
REFUSED, AWAY = LoginRefusedError, ProviderAwayError
KEY = {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}


class Hostile(Served):
    """Answers each path with a status and a document."""

    def __init__(self, folder: Path) -> None:
        tls = Tls(folder)
        self.answers: dict[str, tuple[int, Any]] = {}
        self.headers: list[str | None] = []
        outer = self

        class Handler(JsonHandler):
            def do_GET(self) -> None:
                self.answer(*outer.answers.get(self.path, (404, {})), headers=[("Location", outer.url)])

            def do_POST(self) -> None:
                outer.headers.append(self.headers["Authorization"])
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

        super().__init__(Handler, tls.server())
        (folder / "secret").write_text("s")
        self.settings = OidcSettings(
            issuer=self.url,
            client_id="bursar",
            client_secret_file=folder / "secret",
            ca_file=Path(tls.file("ca.crt")),
            dashboard_url="https://bursar.test",
        )
        endpoints = {"authorization_endpoint": "/authorize", "token_endpoint": "/token", "jwks_uri": "/keys"}
        self.about: dict[str, Any] = {name: f"{self.url}{path}" for name, path in endpoints.items()}
        self.answers |= {"/token": (200, {"id_token": "a.b.c"}), "/keys": (200, {"keys": [KEY]})}


def says(**changed: Any) -> Callable[[Hostile], None]:
    """What it says of itself."""
    return lambda hostile: hostile.about.update(changed)


def answers(path: str, status: int, body: Any) -> Callable[[Hostile], None]:
    return lambda hostile: hostile.answers.update({path: (status, body)})


LONG = b'{"a": "' + b"x" * (512 * 1024) + b'"}'
CASES: dict[str, tuple[Callable[[Hostile], None], type[Exception], str]] = {
    "nothing odd but the token": (says(), REFUSED, "it cannot be read"),
    "another issuer": (says(issuer="https://x.test"), AWAY, "its issuer is 'https://x.test'"),
    "an issuer that is no text": (says(issuer=["x"]), AWAY, r"its issuer is \['x'\]"),
    "an endpoint without TLS": (says(token_endpoint="http://x.test"), AWAY, "its token_endpoint is no https"),
    "an endpoint that is a number": (says(token_endpoint=5), AWAY, "its token_endpoint is no https"),
    "no keys' address": (says(jwks_uri=None), AWAY, "its jwks_uri is no https"),
    "methods that are a number": (says(token_endpoint_auth_methods_supported=5), REFUSED, "cannot be read"),
    "a method in another form": (says(token_endpoint_auth_methods_supported={}), REFUSED, "cannot be read"),
    "no document": (answers(DISCOVERY, 404, {}), AWAY, "answers 404"),
    "a list of itself": (answers(DISCOVERY, 200, []), AWAY, "its issuer is None"),
    "no JSON": (answers(DISCOVERY, 200, b"<html>"), AWAY, "its issuer is None"),
    "too much": (answers(DISCOVERY, 200, LONG), AWAY, "more than 524288 bytes"),
    "leads elsewhere": (answers(DISCOVERY, 302, {}), AWAY, "answers 302"),
    "a token that is a number": (answers("/token", 200, {"id_token": 5}), AWAY, "has no ID token"),
    "no token": (answers("/token", 200, []), AWAY, "has no ID token"),
    "a fault": (answers("/token", 500, {"id_token": "a.b.c"}), AWAY, "its answer 500 has no ID token"),
    "the code leads elsewhere": (answers("/token", 307, {}), AWAY, "its answer 307 has no ID token"),
    "a refusal": (answers("/token", 400, {"error": "bad"}), REFUSED, "does not accept the login: bad"),
    "a refusal in another form": (answers("/token", 400, {"error": [5]}), REFUSED, r"the login: \[5\]"),
    "keys that are a number": (answers("/keys", 200, {"keys": 5}), AWAY, "no key that signs"),
    "no keys": (answers("/keys", 200, b"5"), AWAY, "no key that signs"),
    "keys that are away": (answers("/keys", 503, {"keys": [KEY]}), AWAY, "answers 503"),
}


@pytest.mark.parametrize(("change", "kind", "said"), CASES.values(), ids=CASES)
def test_a_login_at_a_hostile_provider_fails_with_the_reason(
    tmp_path: Path, change: Callable[[Hostile], None], kind: type[Exception], said: str
) -> None:
    with Hostile(tmp_path) as hostile:
        hostile.answers[DISCOVERY] = (200, hostile.about)
        hostile.about["issuer"] = hostile.url
        change(hostile)
        provider = Provider(hostile.settings, lambda: 0)

        with pytest.raises(kind, match=said):
            provider.claims("code", "verifier", "nonce")

        assert re.fullmatch("|https://.*", provider.logout_url())


@pytest.mark.parametrize(
    ("methods", "header"),
    [(None, "Basic YnVyc2FyOnM="), ([], "Basic YnVyc2FyOnM="), (["client_secret_post"], None)],
)
def test_the_secret_goes_as_the_provider_asks_for_it(
    tmp_path: Path, methods: list[str] | None, header: str | None
) -> None:
    with Hostile(tmp_path) as hostile:
        hostile.answers[DISCOVERY] = (200, hostile.about)
        hostile.about |= {"issuer": hostile.url, "token_endpoint_auth_methods_supported": methods}

        with pytest.raises(LoginRefusedError):
            Provider(hostile.settings, lambda: 0).claims("code", "verifier", "nonce")

        assert hostile.headers == [header]
