"""The extender reports the pods that it bound, also those that it bound while the timekeeper was away."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from string import ascii_lowercase

from msgspec import structs

from scheduler_ext.clients.binding_reports import MAX_WAITING, BindingReports
from tests.scheduler_ext.conftest import Start
from tests.scheduler_ext.worlds import node, on, percent, read, request_of
from tests.support.post_client import PostClient
from tests.support.waiting import eventually
from timekeeper.api.resources.bindings import read_bindings
from timekeeper.core.admission.rules.size import MAX_BINDING_BYTES, binding_bytes
from timekeeper.core.request.cards import decode_placement
from timekeeper.core.request.request import parse
from timekeeper.core.values import GPURequest

POD = read(on(percent(50, "p"), "n", "GPU-0"))


def reports(client: PostClient, now_ms: Callable[[], int]) -> tuple[BindingReports, list[str]]:
    lines: list[str] = []
    return BindingReports(client, now_ms, lambda event, **_: lines.append(event)), lines


def test_what_was_bound_while_the_timekeeper_was_away_is_reported_with_its_age() -> None:
    now, client = [1_000], PostClient()
    spool, lines = reports(client, lambda: now[0])
    assert POD.placement is not None
    client.away = True
    for _ in range(101):
        spool.bound(POD, "n", POD.placement)
    assert not spool.send()
    assert not spool.send()
    now[0], client.away = 61_000, False

    assert spool.send()
    assert not spool.send()

    first, second = (json.loads(each)["bindings"] for each in client.posts)
    assert (len(first), len(second)) == (100, 1)
    assert {
        key: first[0][key] for key in ("uid", "namespace", "pod", "node", "age_ms", "dialect", "grace_ms")
    } == {
        "uid": "uid-p",
        "namespace": "team-a",
        "pod": "p",
        "node": "n",
        "age_ms": 60_000,
        "dialect": "bursar",
        "grace_ms": 30_000,
    }
    assert lines == ["bindings-failed", "bindings-sent"]
    assert spool.results == {"sent": 101, "failed": 2, "dropped": 0, "refused": 0}


def test_a_report_that_the_timekeeper_refuses_holds_no_other_back() -> None:
    client = PostClient()
    spool, lines = reports(client, lambda: 0)
    assert POD.placement is not None
    for at in range(150):
        spool.bound(structs.replace(POD, name="bad" if at == 70 else f"p{at}"), "n", POD.placement)
    client.refuses = b'"bad"'

    while spool.send():
        pass

    sent = [each["pod"] for post in client.posts for each in json.loads(post)["bindings"]]
    assert sent == [f"p{at}" for at in range(150) if at != 70]
    assert spool.results == {"sent": 149, "refused": 1, "failed": 0, "dropped": 0}
    assert lines == ["binding-refused"]


def test_a_pod_with_as_many_containers_with_cards_as_admission_allows_is_reported() -> None:
    limits = {"limits": {"bursar.dev/gpu-percent": "1"}}
    names = [f"{first}{second}" for first in ascii_lowercase for second in ascii_lowercase]
    most = next(at for at in count(1) if binding_bytes(asked(names[: at + 1], limits)) > MAX_BINDING_BYTES)
    request = asked(names[:most], limits)
    spool, _ = reports(client := PostClient(), lambda: 0)
    assert POD.placement is not None

    spool.bound(structs.replace(POD, request=request), "n", POD.placement)
    spool.send()

    (read_back,) = read_bindings(client.posts[0], 10**12)
    assert (read_back.request, most) == (request, 109)


def asked(names: list[str], resources: dict[str, dict[str, str]]) -> GPURequest:
    """The request of a pod with these containers."""
    containers = [{"name": each, "resources": resources} for each in names]
    request = parse({"metadata": {}, "spec": {"containers": containers}}).request
    assert request is not None
    return request


def test_the_memory_is_bounded_and_the_oldest_is_dropped() -> None:
    spool, _ = reports(PostClient(), lambda: 0)
    assert POD.placement is not None

    for _ in range(MAX_WAITING + 3):
        spool.bound(POD, "n", POD.placement)

    assert spool.results["dropped"] == 3


def test_a_bind_that_succeeds_is_reported_as_the_timekeeper_reads_it(start: Start, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("none")
    (tmp_path / "token").write_text("token")
    world = start(
        "--timekeeper-url=https://127.0.0.1:1",
        f"--timekeeper-ca={tmp_path}/ca.crt",
        f"--token-file={tmp_path}/token",
    )
    world.put_node(node("n"))
    waiting = world.put_pod(percent(50, "p"))
    spool, client = world.extender.reporting.binding_reports, PostClient()
    assert spool is not None
    client.away = True
    spool._post = lambda first: client.deliver(spool._encoded(first))

    assert world.bind(waiting, "n") == ""
    world.hears(world.api.pod("p"))  # before that, a second bind settles the first and reports it once more
    assert world.bind(waiting, "elsewhere") != ""
    eventually(lambda: spool.results["failed"])
    client.away = False
    eventually(lambda: spool.results["sent"])

    (body,) = client.posts
    (read_back,) = read_bindings(body, 10**12)
    assert (read_back.uid, read_back.namespace, read_back.name, read_back.node) == (
        "uid-p",
        "team-a",
        "p",
        "n",
    )
    assert read_back.request == replace(request_of(waiting), policy="")
    bound = read(world.api.pod("p"))
    assert bound.placement == decode_placement(read_back.devices)
    assert "bursar_extender_bindings_reported_total" in world.client.get("/metrics").text
