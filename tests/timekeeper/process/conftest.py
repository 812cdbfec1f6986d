"""The dashboard over a ledger of its own, its visitors, and where they log in; and a timekeeper to start."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from werkzeug.test import Client

from tests.support.kubeconfig import kubeconfig
from tests.support.tls import Tls
from tests.timekeeper.dashboards import Dashboards, filled
from tests.timekeeper.oidc_logins import OidcProvider
from tests.timekeeper.processes import Process, prepared


@pytest.fixture
def dashboards(tmp_path: Path) -> Iterator[Dashboards]:
    """Nothing has happened yet."""
    with closing(Dashboards(tmp_path)) as made:
        yield made


@pytest.fixture
def visitor(dashboards: Dashboards) -> Client:
    """Somebody without a session."""
    return dashboards.client()


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboards]:
    """The whole cluster, for tests that only look at it."""
    with closing(filled(tmp_path_factory.mktemp("dashboards"))) as made:
        yield made


@pytest.fixture(scope="module")
def url(full: Dashboards, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the whole cluster is shown."""
    with full.served(Tls(tmp_path_factory.mktemp("tls")).server()) as address:
        yield address


@pytest.fixture(scope="module")
def running_provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OidcProvider]:
    made = OidcProvider(tmp_path_factory.mktemp("provider"))
    yield made
    made.stop()


@pytest.fixture
def provider(running_provider: OidcProvider) -> OidcProvider:
    """Ada of the group research logs in there."""
    running_provider.user(preferred_username="ada", groups=["research"])
    return running_provider


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    """A timekeeper that nothing has started yet, whose API server answers nobody."""
    with prepared(tmp_path, kubeconfig(tmp_path, "http://127.0.0.1:1"), traced=True) as made:
        yield made
