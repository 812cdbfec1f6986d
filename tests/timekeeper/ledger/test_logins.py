"""Sessions of people who logged in, on both databases: the replicas of the timekeeper share them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from werkzeug.test import Client

from tests.timekeeper.dashboards import URL, Dashboards, form, status
from tests.timekeeper.oidc_logins import OidcProvider, begin, dashboard
from tests.timekeeper.worlds import HOUR
from timekeeper.api.ledger.login_sessions import LoginSessions
from timekeeper.dashboard.login import pending
from timekeeper.store.engine.engine import Store, open_store

BOTH_DATABASES = "replicas share sessions by their database"
PAGE = "/namespaces/team-a"


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OidcProvider]:
    made = OidcProvider(tmp_path_factory.mktemp("provider"))
    yield made
    made.stop()


@pytest.fixture
def replicas(tmp_path: Path, provider: OidcProvider, database_url: str) -> Iterator[list[Dashboards]]:
    """Two, with connections of their own to one database."""
    made = [dashboard(tmp_path, provider, database_url=database_url) for _ in range(2)]
    made[0].books.entries(("team-a", "gpuHours: 400", 0))
    yield made
    for each in made:
        each.close()


def moved(client: Client, name: str, to: Client) -> None:
    """The next request of the same browser reaches another replica."""
    cookie = client.get_cookie(name, "bursar.test")
    assert cookie is not None
    to.set_cookie(name, cookie.decoded_value, domain="bursar.test", secure=True)


def test_a_login_begun_at_one_replica_ends_at_another_and_its_session_is_known_to_both(
    replicas: list[Dashboards], provider: OidcProvider
) -> None:
    one, other = (each.client() for each in replicas)
    login = begin(provider, one, PAGE)
    moved(one, pending.COOKIE, other)

    answer = other.get(login.back, base_url=URL)

    assert answer.headers["Refresh"] == f"0; url={PAGE}"
    moved(other, "bursar-session", one)
    assert [status(each, PAGE) for each in (one, other)] == [(200, "")] * 2
    assert "oidc:ada" in one.get(PAGE, base_url=URL).text
    one.post("/logout", base_url=URL, data=form(one, PAGE))
    assert status(other, PAGE) == (303, "/login?next=%2Fnamespaces%2Fteam-a&ended=1")


def test_a_session_has_its_user_and_groups_until_its_end_and_no_longer(
    store: Store, database_url: str
) -> None:
    now, elsewhere = [1_000], open_store(database_url)
    here, there = (LoginSessions(each, lambda: now[0]) for each in (store, elsewhere))
    groups = ("oidc:a, b", 'oidc:"é"', "oidc:" + "g" * 507)

    token = here.begin("oidc:ada", groups, 1_000 + HOUR)

    found = there.caller(token)
    assert found is not None
    assert (found.username, found.groups) == ("oidc:ada", (*groups, "system:authenticated"))
    now[0] += HOUR - 1
    assert (there.name_of(token), there.name_of(token[:-1] + "x")) == ("oidc:ada", "")
    now[0] += 1
    assert (there.caller(token), there.name_of(token)) == (None, "")
    kept = here.begin("oidc:bob", (), now[0] + HOUR)
    now[0] -= 1
    assert (there.caller(token), there.name_of(kept)) == (None, "oidc:bob")  # its row is gone
    there.end(kept)
    assert here.caller(kept) is None
    elsewhere.close()
