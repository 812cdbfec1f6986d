"""A provider of OpenID Connect as a process: idpyoidc's server over HTTPS on loopback, with a new key at each
start.

`python -m tests.timekeeper.oidc_provider FOLDER PORT` writes its address to `FOLDER/url`, and serves. Who
visits it is in `FOLDER/user.json` at that moment: a user's claims. Where there is a file `FOLDER/answer`, the
next answer with tokens has its text as ID token instead, as by somebody in between.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from flask import Flask, Response, redirect, request
from idpyoidc.server import Server
from idpyoidc.server.configure import OPConfiguration
from idpyoidc.server.user_info import UserInfo
from werkzeug.serving import make_server

from tests.support.tls import Tls

CLIENT, OTHER_CLIENT, SECRET = "bursar", "another", "a secret, with signs: %&"
CALLBACK = "https://bursar.test/login/callback"
LIFE_S = 600

_KEYS = {
    "key_defs": [{"type": "RSA", "use": ["sig"]}, {"type": "EC", "crv": "P-256", "use": ["sig"]}],
    "uri_path": "keys",
}
_CLAIMS = ("preferred_username", "groups", "email", "email_verified", "_claim_names")
_NO_ENDPOINT = {"client_authn_method": None}
_ENDPOINTS = {
    "provider_config": ("oidc.provider_config.ProviderConfiguration", _NO_ENDPOINT),
    "authorization": ("oidc.authorization.Authorization", {"response_types_supported": ["code"]}),
    "token": (
        "oidc.token.Token",
        {"client_authn_method": ["client_secret_basic", "client_secret_post", "none"]},
    ),
    "session": (
        "oidc.session.Session",
        {"signing_alg": "RS256", "logout_verify_url": "verify_logout", "post_logout_uri_path": "post_logout"},
    ),
}
_PATHS = {"provider_config": ".well-known/openid-configuration"}


class UserOfFile(UserInfo):
    """The claims of a file, read at each login."""

    def __init__(self, db_file: str, **_: Any) -> None:
        super().__init__(db={})  # type: ignore[no-untyped-call]
        self._file = Path(db_file)

    def __call__(self, *_: Any, **__: Any) -> dict[str, Any]:
        claims: dict[str, Any] = json.loads(self._file.read_text())
        return claims


def provider(url: str, folder: Path) -> Server:
    """The provider at this address."""
    client: dict[str, Any] = {
        "client_secret": SECRET,
        "redirect_uris": [(CALLBACK, {})],
        "response_types": ["code"],
        "allowed_scopes": ["openid", "profile", "email"],
        "token_endpoint_auth_method": "client_secret_basic",
    }
    module = "idpyoidc.server"
    configuration = {
        "issuer": url,
        "httpc_params": {"verify": False},
        "key_conf": _KEYS,
        "cookie_handler": {
            "class": f"{module}.cookie_handler.CookieHandler",
            "kwargs": {
                "keys": {"key_defs": [{"type": "OCT", "use": [use], "kid": use} for use in ("enc", "sig")]}
            },
        },
        "endpoint": {
            name: {"path": _PATHS.get(name, name), "class": f"{module}.{kind}", "kwargs": options}
            for name, (kind, options) in _ENDPOINTS.items()
        },
        "token_handler_args": {
            "key_conf": {"key_defs": [{"type": "oct", "bytes": 24, "use": ["enc"], "kid": "code"}]},
            "code": {"lifetime": 60, "kwargs": {"password": "a password of this test"}},
            "token": {"class": f"{module}.token.jwt_token.JWTToken", "kwargs": {"lifetime": LIFE_S}},
            "id_token": {
                "class": f"{module}.token.id_token.IDToken",
                "kwargs": {"lifetime": LIFE_S, "base_claims": dict.fromkeys(_CLAIMS)},
            },
        },
        "authentication": {
            "anonymous": {
                "acr": "urn:oasis:names:tc:SAML:2.0:ac:classes:InternetProtocolPassword",
                "class": f"{module}.user_authn.user.NoAuthn",
                "kwargs": {"user": "somebody"},
            }
        },
        "userinfo": {"class": UserOfFile, "kwargs": {"db_file": str(folder / "user.json")}},
        "add_on": {
            "pkce": {
                "function": f"{module}.oauth2.add_on.pkce.add_support",
                "kwargs": {"essential": True, "code_challenge_methods": {"S256": None}},
            }
        },
    }
    server = Server(OPConfiguration(configuration, base_path=str(folder)), cwd=str(folder))
    server.context.cdb = {CLIENT: client, OTHER_CLIENT: client}
    return server


def application(server: Server, folder: Path) -> Flask:
    """Its endpoints by HTTP."""
    app = Flask("provider")

    def answer(name: str) -> Response:
        endpoint = server.get_endpoint(name)  # type: ignore[no-untyped-call]
        given = request.form if request.method == "POST" else request.args
        http = {
            "headers": {key.lower(): value for key, value in request.headers.items()},
            "method": request.method,
            "url": request.url,
            "cookie": [{"name": key, "value": value} for key, value in request.cookies.items()],
        }
        parsed = endpoint.parse_request(given.to_dict(), http_info=http)
        if "error" in parsed:
            return Response(parsed.to_json(), 400, content_type="application/json")
        done = endpoint.process_request(parsed, http_info=http)
        if "redirect_location" in done:
            return redirect(done["redirect_location"])  # type: ignore[return-value]
        if "error" in done:
            return Response(json.dumps(dict(done)), 400, content_type="application/json")
        made = (
            endpoint.do_response(**done)
            if name != "authorization"
            else endpoint.do_response(request=parsed, **done)
        )
        if made.get("response_placement") == "url" or name == "authorization":
            response = redirect(made["response"])
        else:
            response = Response(made["response"], 200, content_type="application/json")
        for cookie in made.get("cookie", ()):
            response.set_cookie(cookie["name"], cookie["value"], secure=True)
        return response  # type: ignore[return-value]

    @app.get("/.well-known/openid-configuration")
    def about() -> Response:
        return answer("provider_config")

    @app.get("/keys")
    def keys() -> Response:
        return Response(json.dumps(server.keyjar.export_jwks("")), content_type="application/json")

    @app.get("/authorization")
    def authorize() -> Response:
        return answer("authorization")

    @app.post("/token")
    def token() -> Response:
        made, instead = answer("token"), folder / "answer"
        if made.status_code == 200 and instead.exists():
            made.set_data(json.dumps({**json.loads(made.get_data()), "id_token": instead.read_text()}))
            instead.unlink()
        return made

    @app.get("/session")
    def end_session() -> Response:
        return answer("session")

    return app


def main(folder: Path, port: int) -> None:
    """Serve until the process is ended."""
    tls = Tls(folder) if not (folder / "tls.crt").exists() else None
    context = tls.server() if tls else _context(folder)
    app = Flask("none")
    served = make_server("127.0.0.1", port, app, threaded=True, ssl_context=context)
    url = f"https://127.0.0.1:{served.server_port}"
    served.app = application(provider(url, folder), folder)
    new = folder / "url.new"
    new.write_text(url)
    os.rename(new, folder / "url")
    served.serve_forever()


def _context(folder: Path) -> Any:
    import ssl

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
