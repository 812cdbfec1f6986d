"""A cluster for the dashboard: budgets in every state, groups, pods that run, wait and waste, and decisions;
and its pages as a client or a server on loopback."""

import ssl
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from flask import Flask
from jinja2 import BytecodeCache
from jinja2.bccache import Bucket
from sqlalchemy import insert
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.test import Client, TestResponse

from tests.timekeeper.books import Books, Run, days
from tests.timekeeper.worlds import DAY, HOUR, MINUTE, T0, Json, token, user_status
from timekeeper.core.free_cards import NodeFree
from timekeeper.dashboard.app import with_dashboard
from timekeeper.dashboard.login.oidc import OidcLogin
from timekeeper.runtime.oidc_settings import OidcSettings
from timekeeper.store import role_findings
from timekeeper.store.engine.schema import CARD_HOURS, HELD_PODS

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

ADMIN = token("system:serviceaccount:bursar-system:bursar-admin")
READER = token("system:serviceaccount:team-a:bursar-reader")
HOSTILE = "<script>alert(1)</script>\"'&"
NO_TIME = "9999-99-99 99:99Z"  # which a tenant may write all the same
_BEGIN = T0 - 19 * DAY  # of the month


class _CompiledTemplates(BytecodeCache):
    """The code of templates that the applications of a process share: each test has an application of
    its own, and to compile the templates again took half of what the tests of the dashboard took."""

    def __init__(self) -> None:
        self._known: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self._known:
            bucket.bytecode_from_string(self._known[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._known[bucket.key] = bucket.bytecode_to_string()


Flask.jinja_options = {**Flask.jinja_options, "bytecode_cache": _CompiledTemplates()}


class Dashboards:
    """The pages over a ledger of its own. The account of `ADMIN` reads everything, that of `READER` the
    namespace team-a."""

    def __init__(self, folder: Path, oidc: OidcSettings | None = None, database_url: str = "") -> None:
        self.books = Books(database_url or f"sqlite:///{folder}/ledger.db")
        self.books.clock.at_ms = T0
        for each, name in ((ADMIN, "system:serviceaccount:bursar-system:bursar-admin"), (READER, "reader")):
            self.books.reviews.tokens[each] = user_status(name)
        for resource in ("balances", "budgets", "decisions", "grants", "sessions", "usage"):
            denied = ("", "team-b", "_group.lab")
            self.books.reviews.denied |= {("reader", "get", resource, where) for where in denied}
        login = OidcLogin(oidc, self.books.logins, self.books.clock) if oidc else None
        served = with_dashboard(
            self.books.app,
            self.books.clock,
            oidc=login,
            zone=self.books.services.ledger.zone_now,
            gate=self.books.services.gate,
        )

        def stated(environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
            self.books.state()
            return served(environ, start)

        self.app: WSGIApplication = stated

    def close(self) -> None:
        """Close the ledger."""
        self.books.close()

    def client(self) -> Client:
        """A browser without scripts."""
        return Client(self.app)

    @contextmanager
    def served(self, tls: ssl.SSLContext, port: int = 0) -> Iterator[str]:
        """The pages on loopback while the context lasts; gives their address."""
        server = make_server(
            "127.0.0.1", port, self.app, threaded=True, ssl_context=tls, request_handler=_Quiet
        )
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def fill(self, told: str = HOSTILE) -> None:
        """Write the cluster. ``told``: what people of a tenant wrote."""
        self.books.entries(
            ("team-a", "gpuHours: 400\nperiod: month\ngroup: lab\nwarnAt: 0.8\nprice: 2.5", 0),
            ("team-b", "gpuHours: 100\nperiod: month\ngroup: lab\nonExhausted: hold", 0),
            ("team-c", "gpuHours: 120\nperiod: month\nwarnAt: 0.8", 0),
            ("vision", "gpuHours: 2000\nperiod: month", 0),
            ("sandbox", "gpuHours: unlimited", 0),
            ("_group.lab", "gpuHours: 600\nperiod: month\nsplit: {elsewhere: 5}", 0),
        )
        self.books.write(*_runs())
        for at in range(12, 19):
            for namespace, used in (("team-a", 310), ("team-b", 640), ("team-c", 90), ("vision", 880)):
                for hour in range(5):
                    start = _BEGIN + at * DAY + (6 + hour) * HOUR
                    self.books.used(f"{namespace}-{at}", start, "node", HOUR, HOUR * used)
        self._decide(told)
        self._hold()
        self.count_cards({"A100": 64, "H100": 32})
        self._post_map()
        self._look()

    def _look(self) -> None:
        """What the settler sees to be free: 7 nodes of A100, one of them closed, and 5 of H100, all held."""
        pool, rest = (("pool", "a100"),), ((0, 0, 0), (0, 0, 8))
        nodes = {NodeFree(pool, 0, (("A100", 8, 3 - at, 500, *rest[at]),)): (6, 1)[at] for at in range(2)}
        nodes[NodeFree((), 2, (("H100", 8, 0, 0, 2, 1, 0),))] = 5
        with self.books.store.writing() as connection:
            role_findings.record_free(connection, nodes, -1, T0)

    def count_cards(self, cards: Mapping[str, int]) -> None:
        """Cards by the hour of three weeks, of each model so many; a day is not known, and of the running
        hour its first half. Each model is held to a third by night, and to two thirds by day."""
        rows = []
        for at in range(21 * 24):
            hour = T0 - at * HOUR
            known = HOUR // 2 if not at else HOUR
            if not 60 <= at < 84:
                for model, number in {**cards, "": 0}.items():
                    held = number * (2 if at % 24 < 12 else 1) * known * 1000 // 3
                    rows.append(
                        {"hour_ms": hour, "model": model, "known_ms": known, "held": held}
                        | {"free": number * known * 1000 - held, "waiting": 4_000 * known if at < 9 else 0}
                    )
        with self.books.store.writing() as connection:
            connection.execute(insert(CARD_HOURS), rows)

    def _post_map(self) -> None:
        there = {"gpu-1": (("team-a", "train-7"), ("vision", "train-v")), "gpu-2": (("team-a", "infer-1"),)}
        nodes = [_node(f"gpu-{at}", there.get(f"gpu-{at}", ()), at) for at in range(12)]
        waiting = {"total": 1, "pods": [waits("train-9")], "more": {}}
        body = {"version": 1, "nodes": nodes, "gone": [], "waiting": waiting, "term": "a-1"}
        assert self.books.post("/v1/cluster", body).status_code == 200

    def _decide(self, told: str) -> None:
        entries = [
            _decision(
                "placed",
                "Bound",
                "train-7",
                300,
                node="gpu-1",
                cards="GPU-1",
                shareMilli=1000,
                memoryMib=80000,
            ),
            _decision(
                "waiting",
                "TooLittleFree",
                "train-9",
                14,
                37,
                cardsNeeded=2,
                shareNeededMilli=1000,
                memoryNeededMib=0,
                reasons="12 nodes: not enough free GPUs (2 needed)",
                podsAhead=3,
                largestHoleNode="gpu-3",
                largestHoleMib=40960,
                largestHoleMilli=500,
            ),
            _decision(
                "refused",
                "SpentGrant",
                "",
                9,
                message=f"the grant is spent {told} {NO_TIME}",
                generate_name=told,
            ),
            _decision(
                "evicted",
                "BudgetExhausted",
                "sweep-3",
                5,
                message="Evicted: the budget of team-b is used up.",
            ),
        ]
        body = {"version": 1, "source": "extender", "decisions": entries}
        answer = self.books.post("/v1/decisions", body)
        assert answer.status_code == 200, answer.text
        grant = {"subject": "team-a", "gpuHours": "25", "reason": told}
        assert self.books.post("/v1/grants", grant, **{"Idempotency-Key": "k"}).status_code == 200

    def _hold(self) -> None:
        rows = [
            {"uid": f"uid-held-{at}", "namespace": "team-b", "name": f"sweep-{at}", "priority": 0,
             "created_ms": T0 - at * HOUR, "rate_milli": 1000 * at, "needs_budget": True,
             "length_ms": 0, "gang": ""}
            for at in range(1, 5)
        ]  # fmt: skip
        with self.books.store.writing() as connection:
            connection.execute(insert(HELD_PODS), rows)


def log_in(client: Client, bearer: str = ADMIN, onward: str = "/") -> TestResponse:
    """Fill in the form as a visitor does."""
    return client.post(
        "/login", base_url=URL, data={"token": bearer, "next": onward, **form(client, "/login")}
    )


URL = "https://bursar.test"  # cookies are for HTTPS alone


def status(client: Client, path: str) -> tuple[int, str]:
    """The status of a page, and where it leads."""
    answer = client.get(path, base_url=URL)
    return answer.status_code, answer.headers.get("Location", "")


def form(client: Client, path: str) -> Json:
    """The hidden fields of the forms on a page."""
    page = client.get(path, base_url=URL).text
    return {"form_token": page.split('name="form_token" value="')[1].split('"')[0]}


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: object) -> None:
        """Nothing: the tests look at the pages."""


def _decision(kind: str, reason: str, name: str, minutes: int, count: int = 1, **figures: object) -> Json:
    generate_name = figures.pop("generate_name", "")
    return {
        "kind": kind,
        "reason": reason,
        "namespace": "team-a",
        "owner": "Job/train",
        "name": name,
        "generate_name": generate_name,
        "uid": name,
        "budget": "team-a",
        "figures": figures,
        "count": count,
        "first_age_ms": minutes * MINUTE * (1 if count == 1 else 9),
        "last_age_ms": minutes * MINUTE,
    }


def _runs() -> Iterator[Run]:
    """What ran this month: each day a few hours, and what runs now."""
    use = {"team-a": (9, 1), "team-b": (6, 1), "team-c": (5, 1), "vision": (20, 2), "sandbox": (3, 1)}
    owners = ("Job/train", "Deployment/infer", "Job/sweep", "")
    for namespace, (hours, cards) in use.items():
        for at in range(19):
            start = _BEGIN + at * DAY + 6 * HOUR
            end = start + (hours + at % 3) * HOUR
            uid = f"{namespace}-{at}"
            owner = owners[at % len(owners)]
            on = {"node": f"gpu-{at % 4}", "models": "A100", "rate": 1000 * cards, "requested": 1000 * cards}
            yield Run(uid, namespace, owner=owner, started_ms=start, posted=days(start, end), **on)  # type: ignore[arg-type]
    for namespace, uid, node in (
        ("team-a", "train-7", "gpu-1"),
        ("team-a", "infer-1", "gpu-2"),
        ("vision", "train-v", "gpu-1"),
        ("team-c", "notebook", "gpu-3"),
    ):
        yield Run(uid, namespace, owner="Job/train", node=node, models="H100", started_ms=T0 - 3 * HOUR,
                  heard_ms=T0, settled=False)  # fmt: skip


def on_node(name: str, runs: Sequence[Run], cards: int) -> Json:
    """A node of the map with each of these sessions on a whole card."""
    pods = [((run.namespace, run.name),) for run in runs[:cards]] + [()] * (cards - len(runs))
    return {
        "name": name,
        "closed": "",
        "cards": [_card(f"{name}-{at}", at, "H100", each, 0) for at, each in enumerate(pods)],
    }


def _node(name: str, pods: tuple[tuple[str, str], ...], at: int) -> Json:
    model = "H100" if at < 5 else "A100"
    cards = [_card(f"{name}-{number}", number, model, pods[number : number + 1], at) for number in range(8)]
    return {"name": name, "closed": "draining" if at == 11 else "", "cards": cards}


def _card(uuid: str, number: int, model: str, pods: tuple[tuple[str, str], ...], at: int) -> Json:
    """Cards of nodes above 5 are filled more the higher the node's number is."""
    filler = tuple(("vision", f"batch-{uuid}") for _ in range(at > 5 and number < at - 3))
    share = 500 if number % 3 == 2 else 1000
    held = [
        {"namespace": namespace, "name": name, "uid": name, "share_milli": share, "memory_mib": 40 * share}
        | {"held": "bound"}
        for namespace, name in (*pods, *filler)
    ]
    return {
        "uuid": f"GPU-{uuid}",
        "index": number,
        "model": model,
        "memory_mib": 81_559,
        "healthy": not (at == 7 and number == 7),
        "cordoned": at == 4 and number > 5,
        "used_share_milli": share * len(held),
        "used_memory_mib": 40 * share * len(held),
        "pods": held,
        "more_pods": 0,
    }


@cache
def _filled_ledger() -> bytes:
    """An SQLite file with the cluster of `Dashboards.fill`: it is written once, not in each test."""
    with tempfile.TemporaryDirectory() as folder:
        made = Dashboards(Path(folder))
        made.fill()
        made.close()
        return Path(folder, "ledger.db").read_bytes()


def filled(folder: Path) -> Dashboards:
    """The pages over the whole cluster, in this folder."""
    (folder / "ledger.db").write_bytes(_filled_ledger())
    return Dashboards(folder)


def waits(name: str) -> Json:
    """A waiting pod of the map."""
    return {
        "namespace": "team-a",
        "name": name,
        "uid": name,
        "state": "refused",
        "standing": "IN_BUDGET",
        "priority": 0,
        "age_ms": 2 * HOUR,
        "reason": "not enough free GPUs (2 needed) (12 of 12 nodes)",
    }
