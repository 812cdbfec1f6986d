"""Serves the stage until Ctrl-C, with a kubectl for each of four people, who are asked what `tasks.md` asks:
``python -m tests.timekeeper.play FOLDER``.

Each kubectl knows ``bursar``, whose clock is the stage's, and the little that it asks of a cluster."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from tests.deploy.reading import ROOT
from tests.support.tls import Tls
from tests.timekeeper.dashboards import Dashboards
from tests.timekeeper.ledger.test_simulate_api import peers_of
from tests.timekeeper.stage import stage
from tests.timekeeper.worlds import T0, Town, budgets, token, user_status
from timekeeper.api.create_app import app_of, create_services
from timekeeper.dashboard.app import with_dashboard
from timekeeper.runtime.auth.gate import Gate

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

# person: account, and the namespace of the context
PEOPLE = {
    "administrator": ("bursar-system", "bursar-admin", "default"),
    "lead": ("bursar-leads", "research", "default"),
    "accountant": ("bursar-system", "bursar-finance", "default"),
    "member": ("speech", "bursar-reader", "speech"),
}
_VIEWED = ("balances", "budgets", "decisions", "grants", "sessions", "usage")
# what deploy/samples and the ClusterRole `bursar-viewer` give: verb, resource, where; "*": anywhere
_RIGHTS = {
    "system:serviceaccount:bursar-leads:research": {
        ("create", "groups", "research"),  # of grants
        *(("get", resource, "_group.research") for resource in _VIEWED if resource != "sessions"),
        *(("get", resource, namespace) for resource in _VIEWED for namespace in ("ads", "speech")),
        *(("create", "simulations", namespace) for namespace in ("ads", "speech")),
    },
    "system:serviceaccount:bursar-system:bursar-finance": {
        ("get", resource, "*") for resource in ("budgets", "grants", "usage")
    },
    "system:serviceaccount:speech:bursar-reader": {
        ("create", "simulations", "speech"),
        *(("get", resource, "speech") for resource in _VIEWED),
    },
}
EVENING = """apiVersion: batch/v1
kind: Job
metadata: {name: evening}
spec:
  template:
    spec:
      activeDeadlineSeconds: 43200
      restartPolicy: Never
      containers:
        - {name: main, image: train, resources: {limits: {bursar.dev/gpu-percent: "100"}}}
"""
CAPPED = """apiVersion: v1
kind: ConfigMap
metadata: {name: bursar-budgets, namespace: bursar-system}
data:
  speech: "gpuHours: 2000\\nmaxGPUsPerPod: 0.5"
"""
_KUBECTL = f"""#!/bin/sh
here=$(dirname "$0")
case "$1 $2" in
    bursar*)
        shift
        export BURSAR_SERVER={{url}} PYTHONPATH={ROOT}
        exec {sys.executable} -c "import timekeeper.edge.clock as clock
clock.now_ms = lambda: {T0}
from timekeeper.cli.main import main
main()" "$@" ;;
    config*) echo {{namespace}} ;;
    "create token")
        if [ "$5/$3" = {{home}}/{{account}} ]; then exec cat "$here/token"; fi
        echo "error: failed to create token: serviceaccounts \\"$3\\" is forbidden: no right in $5" >&2
        exit 1 ;;
    "get configmap") exec cat "$here/../ca.crt" ;;
    get*) ;;
    *) echo "Error from server (Forbidden): the stage has a ledger and no cluster" >&2; exit 1 ;;
esac
"""


class _Denied(set[tuple[str, str, str, str]]):
    """What people may not do, as `Reviews` asks for it."""

    def __contains__(self, action: object) -> bool:
        assert isinstance(action, tuple)
        user, verb, resource, where = action
        mine = _RIGHTS.get(user)
        return mine is not None and not {(verb, resource, where), (verb, resource, "*")} & mine


@contextmanager
def played(folder: Path, port: int = 0) -> Iterator[str]:
    """The stage on loopback while the context lasts, and below this folder ca.crt, evening.yaml,
    capped.yaml and for each person a folder with kubectl and token; gives the address."""
    tls = Tls(folder)
    (folder / "peers").mkdir()
    for name, text in (("evening.yaml", EVENING), ("capped.yaml", CAPPED)):
        (folder / name).write_text(text)
    with stage(folder) as made, closing(Town(folder / "peers")) as town:
        made.app = _app(made, town)
        with made.served(tls.server(), port) as url:
            for person, (home, account, namespace) in PEOPLE.items():
                bearer = token(f"system:serviceaccount:{home}:{account}")
                made.books.reviews.tokens[bearer] = user_status(f"system:serviceaccount:{home}:{account}")
                (folder / person).mkdir(exist_ok=True)
                (folder / person / "token").write_text(bearer)
                script = folder / person / "kubectl"
                script.write_text(_KUBECTL.format(url=url, home=home, account=account, namespace=namespace))
                script.chmod(0o755)
            yield url


def _app(made: Dashboards, town: Town) -> "WSGIApplication":
    """The pages and the API, whose simulations have a webhook and an extender, with the town's standings."""
    books = made.books
    books.reviews.denied = _Denied()
    town.begin(("configmaps", budgets(speech="gpuHours: 2000\nperiod: month")))
    for name, value in (("gpu-default-priority", 0), ("gpu-lower-priority", -5)):
        raw = {"metadata": {"name": name}, "value": value, "preemptionPolicy": "PreemptLowerPriority"}
        town.change("priorityclasses", raw)
    peers = peers_of(lambda: town.get("/v1/standings").get_data())
    gate = Gate(books.reviews.post, "bursar", books.clock, logins=books.logins.caller)
    services = create_services(books.store, gate, books.clock, lambda: "", 5_000, peers=peers)
    return with_dashboard(app_of(services), books.clock, zone=services.ledger.zone_now)


def main() -> None:
    """Serve, and print what leads there, until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of its files, which is not there yet")
    parser.add_argument("--port", type=int, default=0, help="on loopback; 0: any free one")
    given = parser.parse_args()
    folder = given.folder.resolve()
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        parser.error(f"folder: {folder}: {error.strerror}")
    with played(folder, given.port) as url, suppress(KeyboardInterrupt):
        print(f"REST API and dashboard: {url} (its CA: {folder}/ca.crt). It is 2026-11-20 11:00 in Berlin.")
        for person, (home, account, _) in PEOPLE.items():
            print(f"\n{person}: account {home}/{account}, token in {folder}/{person}/token")
            print(f"    export PATH={folder}/{person}:$PATH    # then: kubectl bursar ...", flush=True)
        Event().wait()


if __name__ == "__main__":
    main()
