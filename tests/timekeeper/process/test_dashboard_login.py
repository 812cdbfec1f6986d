"""The dashboard's login by OpenID Connect, with a provider that runs as a process."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from werkzeug.test import Client, TestResponse

from tests.timekeeper.dashboards import ADMIN, URL, Dashboards, form, log_in, status
from tests.timekeeper.oidc_logins import OidcProvider, begin, dashboard
from tests.timekeeper.oidc_provider import LIFE_S, OTHER_CLIENT
from tests.timekeeper.worlds import HOUR, MINUTE
from timekeeper.dashboard.login import pending

PAGE = "/namespaces/team-a"


@pytest.fixture
def dashboards(tmp_path: Path, provider: OidcProvider) -> Iterator[Dashboards]:
    made = dashboard(tmp_path, provider)
    made.books.entries(("team-a", "gpuHours: 400", 0))
    yield made
    made.close()


def session(answer: TestResponse) -> str:
    """The session's cookie of an answer; "" without one."""
    set_ = [each for each in answer.headers.getlist("Set-Cookie") if each.startswith("bursar-session=")]
    return set_[0] if set_ else ""


def refused(answer: TestResponse) -> str:
    """What a page of a login that failed says; it begins no session."""
    assert session(answer) == ""
    assert answer.status_code in (403, 503), answer.status_code
    (said,) = re.findall(r'role="alert">([^<]+)<', answer.text)
    return str(said)


def test_a_person_logs_in_and_has_the_rights_of_their_groups(
    dashboards: Dashboards, visitor: Client, provider: OidcProvider
) -> None:
    dashboards.books.reviews.readers = frozenset({"oidc:research"})
    assert 'href="/login/oidc?next=%2Fwaste"' in visitor.get("/login?next=/waste", base_url=URL).text

    answer = begin(provider, visitor).finish()

    assert (answer.status_code, answer.headers["Refresh"]) == (200, f"0; url={PAGE}")
    assert {"Secure", "HttpOnly", "Path=/", "SameSite=Strict"} <= set(session(answer).split("; "))
    page = visitor.get(PAGE, base_url=URL)
    assert (page.status_code, "oidc:ada" in page.text) == (200, True)
    provider.user(preferred_username="bob", groups=["sales"])
    other = dashboards.client()
    begin(provider, other).finish()
    assert other.get(PAGE, base_url=URL).status_code == 403


def test_everybody_whom_the_provider_knows_is_authenticated_for_kubernetes(
    dashboards: Dashboards, visitor: Client, provider: OidcProvider
) -> None:
    dashboards.books.reviews.readers = frozenset({"system:authenticated"})
    begin(provider, visitor).finish()

    assert status(visitor, PAGE) == (200, "")


def test_a_grant_names_the_person_who_gave_it(
    dashboards: Dashboards, visitor: Client, provider: OidcProvider
) -> None:
    dashboards.books.entries(
        ("team-b", "gpuHours: 400\nperiod: month\ngroup: lab", 0),
        ("_group.lab", "gpuHours: 600\nperiod: month", 0),
    )
    begin(provider, visitor).finish()
    key = visitor.get("/groups/lab", base_url=URL).text.split('name="key" value="')[1].split('"')[0]
    filled = {
        "key": key,
        "namespace": "team-b",
        "gpuHours": "2",
        "reason": "r",
        **form(visitor, "/groups/lab"),
    }

    assert visitor.post("/groups/lab", base_url=URL, data=filled).status_code == 303

    (decision,) = dashboards.books.get("/v1/decisions?namespace=team-b&kind=grant").get_json()["decisions"]
    assert decision["figures"]["actor"] == "oidc:ada"


def test_an_answer_that_this_browser_did_not_ask_for_begins_no_session(
    dashboards: Dashboards, visitor: Client, provider: OidcProvider
) -> None:
    victim = dashboards.client()
    stolen = begin(provider, visitor)

    assert "this browser has begun no such login" in refused(victim.get(stolen.back, base_url=URL))
    begin(provider, victim)
    assert "this browser has begun no such login" in refused(victim.get(stolen.back, base_url=URL))


def test_the_begun_login_is_in_a_cookie_that_no_script_reads(visitor: Client) -> None:
    answer = visitor.get("/login/oidc", base_url=URL)

    (cookie,) = answer.headers.getlist("Set-Cookie")
    assert cookie.startswith(f"{pending.COOKIE}=")
    assert {"Secure", "HttpOnly", "Path=/", "SameSite=Lax", "Max-Age=600"} <= set(cookie.split("; "))


def test_a_code_is_taken_once(dashboards: Dashboards, visitor: Client, provider: OidcProvider) -> None:
    first = begin(provider, visitor)
    kept = visitor.get_cookie(pending.COOKIE, "bursar.test")
    assert kept is not None
    first.finish()

    assert "this browser has begun no such login" in refused(first.finish())
    visitor.set_cookie(pending.COOKIE, kept.decoded_value, domain="bursar.test", secure=True)
    assert "the provider does not accept the login" in refused(first.finish())


def test_a_code_without_its_verifier_is_worth_nothing(
    dashboards: Dashboards, visitor: Client, provider: OidcProvider
) -> None:
    """As somebody has it who has read another browser's redirection, and made the rest of the cookie."""
    stolen, thief = begin(provider, visitor), dashboards.client()
    asked, onward = stolen.asked, "/"
    made = " ".join((asked["state"], asked["nonce"], "v" * 43, onward))
    thief.set_cookie(pending.COOKIE, made, domain="bursar.test", secure=True)

    assert "PKCE check failed" in refused(thief.get(stolen.back, base_url=URL))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"nonce": "another"}, "it belongs to another login"),
        ({"client_id": OTHER_CLIENT}, "it is for another client"),
    ],
)
def test_a_valid_token_of_another_login_or_client_is_refused(
    visitor: Client, provider: OidcProvider, changed: dict[str, str], why: str
) -> None:
    login = begin(provider, visitor)
    mine = pending.begin("/")
    asked = {"nonce": login.asked["nonce"], "verifier": mine.verifier, "challenge": mine.challenge}
    provider.answer_next(provider.id_token(**{**asked, **changed}))

    assert why in refused(login.finish())


def test_the_same_token_is_taken_if_it_is_for_this_login(visitor: Client, provider: OidcProvider) -> None:
    """So that the case before this one shows the nonce and the audience, and nothing else."""
    login, mine = begin(provider, visitor), pending.begin("/")
    asked = {"nonce": login.asked["nonce"], "verifier": mine.verifier, "challenge": mine.challenge}
    provider.answer_next(provider.id_token(**asked))

    assert session(login.finish())


@pytest.mark.parametrize("header", [{"alg": "none"}, {"alg": "HS256"}])
def test_a_token_that_no_private_key_has_signed_is_refused(
    visitor: Client, provider: OidcProvider, header: dict[str, str]
) -> None:
    """HS256: signed with the public key, which everybody knows, as if it were a secret."""
    login, mine = begin(provider, visitor), pending.begin("/")
    asked = {"nonce": login.asked["nonce"], "verifier": mine.verifier, "challenge": mine.challenge}
    provider.answer_next(provider.forged(provider.id_token(**asked), header))

    assert "no key of the provider has signed it" in refused(login.finish())


@pytest.mark.parametrize(
    ("turned", "why"), [(LIFE_S * 1000 + MINUTE, "it has expired"), (-HOUR, "it is from the future")]
)
def test_a_token_of_another_time_is_refused(
    dashboards: Dashboards, visitor: Client, provider: OidcProvider, turned: int, why: str
) -> None:
    login = begin(provider, visitor)
    dashboards.books.clock.turn(turned)

    assert why in refused(login.finish())


def test_a_session_ends_with_the_id_token_or_sooner(
    tmp_path: Path, dashboards: Dashboards, visitor: Client, provider: OidcProvider
) -> None:
    (tmp_path / "short").mkdir()
    short = dashboard(tmp_path / "short", provider, lifetime_ms=2 * MINUTE)
    for made, life_ms in ((dashboards, LIFE_S * 1000), (short, 2 * MINUTE)):
        client = made.client()
        begin(provider, client, "/groups").finish()
        made.books.clock.turn(life_ms - MINUTE)
        assert status(client, "/groups") == (200, "")
        made.books.clock.turn(2 * MINUTE)  # the provider counts from the login, by the real time
        assert status(client, "/groups") == (303, "/login?next=%2Fgroups&ended=1")
    short.close()


def test_a_logout_ends_the_session_everywhere_and_leads_to_the_providers(
    dashboards: Dashboards, visitor: Client, provider: OidcProvider
) -> None:
    copied = dashboards.client()
    begin(provider, visitor).finish()
    kept = visitor.get_cookie("bursar-session", "bursar.test")
    assert kept is not None
    copied.set_cookie("bursar-session", kept.value, domain="bursar.test", secure=True)
    assert status(copied, PAGE) == (200, "")

    answer = visitor.post("/logout", base_url=URL, data=form(visitor, PAGE))

    assert answer.headers["Refresh"] == f"0; url={provider.url}/session?client_id=bursar"
    assert status(visitor, PAGE)[0] == 303
    assert status(copied, PAGE) == (303, f"/login?next={PAGE.replace('/', '%2F')}&ended=1")


def test_changed_groups_count_from_the_next_login_on(
    dashboards: Dashboards, visitor: Client, provider: OidcProvider
) -> None:
    dashboards.books.reviews.readers = frozenset({"oidc:research"})
    begin(provider, visitor).finish()
    provider.user(preferred_username="ada", groups=[])
    assert status(visitor, PAGE) == (200, "")

    begin(provider, visitor).finish()

    assert status(visitor, PAGE)[0] == 403


@pytest.mark.parametrize(
    ("claims", "changed", "why"),
    [
        (
            {"preferred_username": "system:admin"},
            {"username_prefix": "-"},
            "system:admin begins with system:",
        ),
        ({"preferred_username": "x"}, {"username_prefix": "system:"}, "system:x begins with system:"),
        (
            {"preferred_username": "x", "groups": ["a", "system:masters"]},
            {"groups_prefix": ""},
            "system:masters begins with system:",
        ),
        ({}, {}, "the claim preferred_username must have names"),
        ({"preferred_username": "x\ny"}, {}, "the claim preferred_username must have names"),
        ({"preferred_username": "x" * 513}, {}, "the claim preferred_username must have names"),
        ({"preferred_username": "x", "groups": {"a": "b"}}, {}, "the claim groups must be a list"),
        ({"preferred_username": "x", "groups": ["a"] * 1001}, {}, "the claim groups must be a list"),
        ({"email": "a@b.test"}, {"username_claim": "email"}, "has not verified the address"),
        (
            {"email": "a@b.test", "email_verified": "true"},
            {"username_claim": "email"},
            "has not verified the address",
        ),
        ({"preferred_username": "x", "_claim_names": {"groups": "s"}}, {}, "too many groups"),
    ],
)
def test_claims_that_name_no_user_of_ours_are_refused(
    tmp_path: Path, provider: OidcProvider, claims: dict[str, Any], changed: dict[str, str], why: str
) -> None:
    provider.user(**claims)
    made = dashboard(tmp_path, provider, **changed)

    assert why in refused(begin(provider, made.client()).finish())

    made.close()


def test_a_new_key_of_the_provider_is_found_and_its_absence_is_said(
    dashboards: Dashboards, visitor: Client, provider: OidcProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timekeeper.dashboard.login.provider._KEYS_INTERVAL_MS", 0)
    assert session(begin(provider, visitor).finish())
    provider.stop()

    away = visitor.get("/login/oidc", base_url=URL)
    by_token = log_in(visitor, ADMIN, onward="/groups")

    assert away.status_code == 303  # what the provider says of itself is known for a while
    assert "does not answer as it should" in refused(
        visitor.get(
            f"/login/callback?code=c&state={parse_qs(urlsplit(away.headers['Location']).query)['state'][0]}",
            base_url=URL,
        )
    )
    assert "does not answer as it should" in refused(
        dashboards_of(provider, dashboards).get("/login/oidc", base_url=URL)
    )
    assert (by_token.status_code, status(visitor, "/groups")[0]) == (303, 200)

    provider.start()

    assert session(begin(provider, dashboards.client()).finish())


def dashboards_of(provider: OidcProvider, dashboards: Dashboards) -> Client:
    """A browser of another process that has not asked the provider yet."""
    from timekeeper.dashboard.app import with_dashboard
    from timekeeper.dashboard.login.oidc import OidcLogin

    books = dashboards.books
    return Client(
        with_dashboard(books.app, books.clock, oidc=OidcLogin(provider.settings(), books.logins, books.clock))
    )


@pytest.mark.parametrize(
    "onward", ["//evil.test/", "https://evil.test", "/\\evil.test", "javascript:alert(1)"]
)
def test_a_login_leads_to_a_path_of_this_server_alone(
    visitor: Client, provider: OidcProvider, onward: str
) -> None:
    assert begin(provider, visitor, onward).finish().headers["Refresh"] == "0; url=/"


def test_what_the_provider_refuses_is_said(visitor: Client, provider: OidcProvider) -> None:
    state = begin(provider, visitor).asked["state"]

    answer = visitor.get(f"/login/callback?error=access_denied&state={state}", base_url=URL)

    assert refused(answer) == "The login failed: the provider says: access_denied."


def test_without_a_provider_there_is_no_such_login(tmp_path: Path) -> None:
    made = Dashboards(tmp_path)
    client = made.client()

    assert "/login/oidc" not in client.get("/login", base_url=URL).text
    assert [client.get(f"/login/{each}", base_url=URL).status_code for each in ("oidc", "callback")] == [
        404,
        404,
    ]

    made.close()
