"""Who may read the webhook's metrics, and that reviews and probes do not wait for that question."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import orjson
import pytest

from deploy.local.limits import LONGEST_S
from tests.support.kubeconfig import kubeconfig
from tests.support.simulated_timekeeper import SimulatedTimekeeper, standings
from tests.support.tls import Tls
from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.worlds import Json, token, user_status
from tests.webhook.servers import Webhook
from tests.webhook.worlds import admitted
from tests.worlds import container
from timekeeper.edge.clock import now_ms
from timekeeper.runtime.http.service import HttpRequest
from webhook.metrics import of_all_workers
from webhook.server.wiring import metrics_route

LASTS_MS = now_ms() + 86_400_000  # longer than any run of all tests
SCRAPER, STRANGER, LATE = (token(name, LASTS_MS) for name in ("scraper", "stranger", "late"))


class Reviewing(FakeApiServer):
    """Answers reviews while ``answers`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = Event()
        self.answers.set()
        self.asked = Event()

    def review(self, path: str, body: Json) -> Json | None:
        self.asked.set()
        self.answers.wait(LONGEST_S)
        return super().review(path, body)


@pytest.fixture(scope="module")
def api() -> Reviewing:
    made = Reviewing()
    made.tokens = {SCRAPER: user_status("scraper"), STRANGER: user_status("stranger")}
    made.allowed = {("scraper", "get", "/metrics", "")}
    return made


@pytest.fixture(scope="module")
def webhook(tmp_path_factory: pytest.TempPathFactory, tls: Tls, api: Reviewing) -> Iterator[Webhook]:
    """One worker."""
    folder = tmp_path_factory.mktemp("webhook")
    with SimulatedTimekeeper(tls) as timekeeper, serving(api) as url:
        timekeeper.document = standings()
        flags = (f"--kubeconfig={kubeconfig(folder, url)}", "--metrics-access=token")
        with Webhook(folder, tls, timekeeper.url, *flags, workers=1) as running:
            yield running


def scraped(webhook: Webhook, bearer: str = "") -> tuple[int, str]:
    sent = {"Authorization": f"Bearer {bearer}"} if bearer else {}
    status, body = webhook.ask("GET", "/metrics", None, **sent)
    return status, body.decode() if status == 200 else orjson.loads(body)["detail"]


def test_a_reader_shows_a_token_and_has_the_right(webhook: Webhook) -> None:
    status, text = scraped(webhook, SCRAPER)

    assert (status, "bursar_webhook_standings_last_success_timestamp_seconds" in text) == (200, True)
    assert scraped(webhook) == (401, "a bearer token is required")
    assert scraped(webhook, LATE) == (401, "the API server rejected the token")
    assert scraped(webhook, STRANGER) == (403, "stranger may not get the nonResourceURL /metrics")
    for path in ("/%6detrics", "/metrics/", "//metrics"):
        assert webhook.ask("GET", path)[0] == 404


def test_while_the_api_server_hangs_reviews_and_probes_are_answered(webhook: Webhook, api: Reviewing) -> None:
    api.asked.clear()
    api.answers.clear()
    with ThreadPoolExecutor(4) as scrapers:
        waiting = [scrapers.submit(scraped, webhook, token(f"new-{at}", LASTS_MS)) for at in range(4)]
        assert api.asked.wait(LONGEST_S)
        assert webhook.review("/mutate", admitted(container(gpu_percent="150")))["allowed"] is False
        assert [webhook.ask("GET", path)[0] for path in ("/livez", "/readyz")] == [200, 200]
        assert not any(each.done() for each in waiting)
        api.answers.set()
        assert {each.result()[0] for each in waiting} == {401}


def asked_of(is_open: bool) -> tuple[int, bytes]:
    """The answer of a route that has no way to the API server."""
    answer = metrics_route(of_all_workers(), is_open, None).handler(HttpRequest(*[None] * 5))  # type: ignore[arg-type]
    assert answer is not None
    assert not callable(answer)
    assert isinstance(answer.body, bytes)
    return answer.status, answer.body


def test_without_an_api_server_only_open_metrics_are_read() -> None:
    """Their files are gone here, as after a cleaner of temporary files."""
    closed, opened = asked_of(is_open=False), asked_of(is_open=True)

    assert closed[0] == 503
    assert b"--metrics-access=open" in closed[1]
    assert opened[0] == 503
    assert b"restart the webhook" in opened[1]
