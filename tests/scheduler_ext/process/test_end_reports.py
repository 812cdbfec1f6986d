"""The extender reports the removals of bound pods, also those that it saw while the timekeeper was away."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.clients.end_reports import MAX_WAITING, EndReports
from tests.scheduler_ext.conftest import Start
from tests.scheduler_ext.worlds import node, on, percent, read
from tests.support.post_client import PostClient
from tests.support.waiting import eventually
from tests.worlds import Json, status, terminated
from timekeeper.api.resources.ends import read_ends
from timekeeper.core.ledger.hold import pod_hold

STARTED, ENDED = "2026-11-20T10:00:00Z", "2026-11-20T10:03:00Z"
NOW = 10**13


def ended(name: str = "p") -> Json:
    """A pod that ran on a card and has ended."""
    raw: Json = on(percent(50, name), "n", "GPU-0")
    return raw | {"status": status("Succeeded", main=terminated(STARTED, ENDED))}


def reports(client: PostClient, now_ms: Callable[[], int] = lambda: 0) -> tuple[EndReports, list[str]]:
    lines: list[str] = []
    return EndReports(client, now_ms, lambda event, **_: lines.append(event)), lines


def cache_of(spool: EndReports) -> ClusterCache:
    return ClusterCache(lambda: NOW, lambda _nodes: None, removed=spool.removed, left=spool.left)


def test_what_ended_while_the_timekeeper_was_away_is_reported_as_the_timekeeper_reads_it() -> None:
    now, client = [1_000], PostClient()
    spool, lines = reports(client, lambda: now[0])
    client.away = True
    for at in range(101):
        spool.removed(read(ended(f"p{at}")))
    assert not spool.send()
    now[0], client.away = 61_000, False

    assert spool.send()
    assert not spool.send()

    first, second = (read_ends(each, NOW) for each in client.posts)
    assert (len(first), len(second)) == (100, 1)
    assert (first[0].uid, first[0].namespace, first[0].name, first[0].node) == ("uid-p0", "team-a", "p0", "n")
    assert first[0].hold == replace(pod_hold(ended()), finishes=())  # its end stands for them
    assert (first[0].removed_ms, first[0].left_ms) == (NOW - 60_000, None)
    assert lines == ["ends-failed", "ends-sent"]


def test_the_memory_is_bounded_and_the_oldest_is_dropped_which_the_log_says_once() -> None:
    client = PostClient()
    spool, lines = reports(client)
    pod = read(ended())

    for at in range(MAX_WAITING + 3):
        spool.removed(structs.replace(pod, uid=f"uid-{at}"))
    while spool.send():
        pass

    assert spool.results == {"sent": MAX_WAITING, "dropped": 3, "refused": 0, "failed": 0}
    assert lines == ["ends-dropped"]
    assert read_ends(client.posts[0], NOW)[0].uid == "uid-3"


def test_a_pod_that_was_never_bound_has_no_end() -> None:
    spool, _ = reports(client := PostClient())
    cache = cache_of(spool)

    cache.pod_updated(read(percent(50, "waits")))
    cache.pod_deleted(read(percent(50, "waits")))
    spool.send()

    assert client.posts == []


def test_of_pods_that_a_list_lacks_only_those_are_reported_whose_end_was_seen() -> None:
    spool, _ = reports(client := PostClient())
    cache = cache_of(spool)
    cache.pods_listed([read(ended("over")), read(on(percent(10, "runs"), "n", "GPU-0"))])

    cache.pods_listed([])
    spool.send()

    assert [each.name for each in read_ends(client.posts[0], NOW)] == ["over"]


def test_an_end_is_reported_with_what_only_earlier_versions_of_the_object_said() -> None:
    spool, _ = reports(client := PostClient())
    cache = cache_of(spool)
    runs = on(percent(10, "p"), "n", "GPU-0")
    longer = runs | {"metadata": runs["metadata"] | {"deletionGracePeriodSeconds": 400}}

    cache.pod_updated(read(longer))
    cache.pod_deleted(read(runs))
    spool.send()

    assert read_ends(client.posts[0], NOW)[0].hold.grace_ms == 400_000


def test_a_removal_is_reported_by_a_running_extender(start: Start, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("none")
    (tmp_path / "token").write_text("token")
    world = start(
        "--timekeeper-url=https://127.0.0.1:1",
        f"--timekeeper-ca={tmp_path}/ca.crt",
        f"--token-file={tmp_path}/token",
    )
    world.put_node(node("n"))
    spool, client = world.extender.reporting.end_reports, PostClient()
    assert spool is not None
    client.away = True
    spool._post = lambda first: client.deliver(spool._encoded(first))
    stored = world.put_pod(ended())
    world.hears(stored)

    world.api.delete("pods", "p", "team-a")
    eventually(lambda: spool.results["failed"])
    client.away = False
    eventually(lambda: spool.results["sent"])

    (body,) = client.posts
    (end,) = read_ends(body, NOW)
    assert (end.uid, end.node, end.hold) == ("uid-p", "n", replace(pod_hold(ended()), finishes=()))
    assert 'bursar_extender_ends_reported_total{result="sent"} 1.0' in world.client.get("/metrics").text
