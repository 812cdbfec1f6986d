"""What recording decisions adds to a review and to a bind: processes with and without it, in one run.

``python -m tests.bench.recording [--reviews N] [--binds N] [--json FILE]``. Reviews of a pod that is refused,
straight over TLS to a webhook of one worker, and binds by an extender that a stand-in for the API server
answers at once; each leaves a decision. Both ways are asked in turn, call by call. ``p50_ms`` of each way;
``ratio``: recorded to unrecorded.
"""

import http.client
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson

from tests.bench.command import arguments, write

ROOT = Path(__file__).parents[2]

from tests.scheduler_ext.apiserver import ApiServer, api_server  # noqa: E402
from tests.scheduler_ext.processes import Process  # noqa: E402
from tests.scheduler_ext.worlds import node, percent  # noqa: E402
from tests.support.kubeconfig import kubeconfig  # noqa: E402
from tests.support.simulated_timekeeper import SimulatedTimekeeper, entry, standings  # noqa: E402
from tests.support.tls import Tls  # noqa: E402
from tests.support.waiting import eventually  # noqa: E402
from tests.webhook.servers import Webhook  # noqa: E402
from tests.webhook.worlds import admitted, review_of  # noqa: E402
from tests.worlds import card, container  # noqa: E402

Json = dict[str, Any]

WAYS = {"recorded": (), "unrecorded": ("tests.bench.unrecorded",)}  # what runs the role
WARM_UP = 50
PODS_A_NODE = 80


def in_turn(calls: Mapping[str, Callable[[int], None]], number: int) -> Json:
    """The p50 of both ways, and their ratio."""
    took: dict[str, list[float]] = {way: [] for way in calls}
    for at in range(WARM_UP + number):
        for way in list(calls)[:: 1 if at % 2 else -1]:
            began = time.perf_counter()
            calls[way](at)
            took[way].append(1000 * (time.perf_counter() - began))
    p50 = {way: round(statistics.median(each[WARM_UP:]), 3) for way, each in took.items()}
    return {"p50_ms": p50, "ratio": round(p50["recorded"] / p50["unrecorded"], 3)}


def reviews(folder: Path, tls: Tls, url: str, number: int) -> Json:
    """Both webhooks, each with a client of its own."""
    with ExitStack() as ending:
        calls = {way: _reviewer(ending, folder / f"webhook-{way}", tls, url, WAYS[way]) for way in WAYS}
        return in_turn(calls, number)


def _reviewer(
    ending: ExitStack, folder: Path, tls: Tls, url: str, through: tuple[str, ...]
) -> Callable[[int], None]:
    folder.mkdir()
    webhook = ending.enter_context(Webhook(folder, tls, url, workers=1, through=through))
    eventually(lambda: "event=standings-updated" in webhook.log(), "the standings")
    client = webhook.connection()
    ending.callback(client.close)

    def review(at: int) -> None:
        raw = admitted(container(gpu_percent="150")) | {"metadata": {"name": f"p{at}"}}
        client.request("POST", "/mutate", orjson.dumps(review_of(raw, uid=f"u{at}")))
        assert orjson.loads(client.getresponse().read())["response"]["allowed"] is False

    return review


def binds(folder: Path, timekeeper: SimulatedTimekeeper, number: int) -> Json:
    """Both extenders, each with an API server of its own."""
    with ExitStack() as ending:
        calls = {
            way: _binder(ending, folder / f"extender-{way}", timekeeper, WAYS[way], number) for way in WAYS
        }
        return in_turn(calls, number)


def _binder(
    ending: ExitStack, folder: Path, timekeeper: SimulatedTimekeeper, through: tuple[str, ...], number: int
) -> Callable[[int], None]:
    folder.mkdir()
    api: ApiServer = ending.enter_context(api_server())
    for at in range((WARM_UP + number) // PODS_A_NODE + 1):
        api.put("nodes", node(f"n{at}", *(card(index) for index in range(8))))
    flags = (f"--kubeconfig={kubeconfig(folder, api.url)}", *timekeeper.flags)
    process = Process(folder, *flags, through=through)
    process.start_ready()
    ending.callback(process.kill)
    eventually(lambda: "bursar_extender_leads 1.0" in process.get("/metrics")[1], "it to lead")
    client = http.client.HTTPConnection("127.0.0.1", process.port, timeout=30)
    ending.callback(client.close)

    def ask(path: str, body: Json) -> Json:
        client.request("POST", path, json.dumps(body))
        answer: Json = json.loads(client.getresponse().read())
        return answer

    for at in range(WARM_UP + number):
        api.put("pods", percent(10, f"p{at}"))

    def bind(at: int) -> None:
        order = {
            "PodName": f"p{at}",
            "PodNamespace": "team-a",
            "PodUID": f"uid-p{at}",
            "Node": f"n{at // PODS_A_NODE}",
        }
        answer = ask("/bind", order)
        assert answer["Error"] == "", answer

    return bind


def main() -> None:
    """Prints the figures and writes the JSON."""
    given = arguments(__doc__, reviews=(5_000, "of each way"), binds=(2_000, "of each way"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tls = Tls(folder)
        with SimulatedTimekeeper(tls, standings(team_a=entry())) as timekeeper:
            found: Json = {"reviews": reviews(folder, tls, timekeeper.url, given.reviews)}
            posted = len(timekeeper.posted)
            found["binds"] = binds(folder, timekeeper, given.binds)
            assert 0 < posted < len(timekeeper.posted), "decisions arrive"
    found["load"] = os.getloadavg()
    print(found)
    write(given.json, found)


if __name__ == "__main__":
    main()
