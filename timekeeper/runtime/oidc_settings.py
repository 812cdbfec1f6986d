"""The OpenID Connect provider by which people log in to the dashboard. Claims and prefixes mean what they
mean as flags of the API server."""

import re
from dataclasses import dataclass
from pathlib import Path

from timekeeper.runtime.flags import (
    UnusableError,
    flag,
    https,
    nonempty,
    optional,
    path_or_none,
    wrong,
)

NO_PREFIX = "-"


def _scopes(text: str) -> str:
    if not re.fullmatch(r"[\x21\x23-\x5b\x5d-\x7e]+( [\x21\x23-\x5b\x5d-\x7e]+)*", text):
        raise wrong(text, "a list of scopes with a space between two, such as openid groups")
    if "openid" not in text.split(" "):
        raise wrong(text, "a list of scopes with openid, without which there is no ID token")
    return text


def _origin(text: str) -> str:
    """A URL without a path."""
    url = https(text).rstrip("/")
    if url.count("/") != 2:
        raise wrong(text, "an https:// URL without a path")
    return url


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings:
    """``issuer`` "": people log in by tokens alone. ``client_secret_file`` None: a public client."""

    issuer: str = flag(
        optional(https, ""),
        "",
        "issuer of the OpenID Connect provider by which people log in to the dashboard, such as"
        " https://login.example.com; empty: they log in by tokens alone",
        name="--oidc-issuer",
    )
    client_id: str = flag(str, "", "the dashboard's client ID at the provider", name="--oidc-client-id")
    client_secret_file: Path | None = flag(
        path_or_none,
        "",
        "file with the client's secret, read before each use; empty: the client is public",
        name="--oidc-client-secret-file",
    )
    ca_file: Path | None = flag(
        path_or_none,
        "",
        "CA bundle of the provider, PEM, reread when it changes; empty: the system's",
        name="--oidc-ca-file",
    )
    username_claim: str = flag(
        nonempty,
        "sub",
        "claim with the user's name, as the API server's flag; email must be verified",
        name="--oidc-username-claim",
    )
    username_prefix: str = flag(
        str,
        "",
        "prefix of users' names, as the API server's flag; empty: the issuer and #, and none for the claim"
        " email; -: none",
        name="--oidc-username-prefix",
    )
    groups_claim: str = flag(
        str, "", "claim with the user's groups; empty: they have none", name="--oidc-groups-claim"
    )
    groups_prefix: str = flag(str, "", "prefix of groups' names", name="--oidc-groups-prefix")
    scopes: str = flag(_scopes, "openid email profile", "scopes that are asked for", name="--oidc-scopes")
    dashboard_url: str = flag(
        optional(_origin, ""),
        "",
        "address of the dashboard as browsers see it, such as https://bursar.example.com; the provider must"
        " know its path /login/callback",
        name="--dashboard-url",
    )
    lifetime_ms: int = 3_600_000  # the longest session after a login; it has no flag

    def __post_init__(self) -> None:
        """Refuses a provider of which half is said."""
        needed = {"--oidc-client-id": self.client_id, "--dashboard-url": self.dashboard_url}
        missing = next((name for name, value in needed.items() if not value), "")
        if self.issuer and missing:
            raise UnusableError(f"{missing}: it is missing, and --oidc-issuer needs it")
        if self.client_id and not self.issuer:
            raise UnusableError("--oidc-issuer: it is missing, and --oidc-client-id needs it")

    @property
    def prefix(self) -> str:
        """What stands before each user's name."""
        if self.username_prefix:
            return "" if self.username_prefix == NO_PREFIX else self.username_prefix
        return "" if self.username_claim == "email" else f"{self.issuer}#"

    @property
    def callback(self) -> str:
        """Where the provider sends the browser back to."""
        return f"{self.dashboard_url}/login/callback"
