"""Lists that are streamed, over HTTP: after a restart of the API server, and where it refuses them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from scheduler_ext.cache.informers import PODS
from tests.scheduler_ext.apiserver import ApiServer, Fault, api_server
from tests.scheduler_ext.worlds import percent
from tests.support.kubeconfig import kubeconfig
from timekeeper.edge.list_watch import inform
from timekeeper.edge.reflector import ObjectChanged, ObjectsListed, WatchEvent, WatchFailed
from timekeeper.edge.source_health import SourceHealth
from timekeeper.runtime.connect import connect


class Followed:
    """The pods of the server by name and version. ``decoded``: the names of those that were read."""

    def __init__(self, api: ApiServer, folder: Path) -> None:
        self.decoded: list[str] = []
        self.refusals: list[object] = []
        self.pauses: list[int] = []
        self._events: Iterator[WatchEvent[tuple[str, str]]] = inform(
            connect(kubeconfig(folder, api.url)),
            PODS,
            self._read,
            self.pauses.append,
            SourceHealth("pods", lambda event, **fields: self.refusals.append(fields["reason"]), lambda: 0),
        )

    def _read(self, raw: Mapping[str, Any]) -> tuple[str, str]:
        self.decoded.append(raw["metadata"]["name"])
        return raw["metadata"]["name"], raw["metadata"]["resourceVersion"]

    def next(self, kind: type[WatchEvent[tuple[str, str]]]) -> WatchEvent[tuple[str, str]]:
        """The next event of this kind."""
        return next(event for event in self._events if isinstance(event, kind))

    def listed(self) -> dict[str, str]:
        """The next list: name -> version."""
        event = self.next(ObjectsListed)
        assert isinstance(event, ObjectsListed)
        return dict(event.items)


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with api_server() as server:
        for name in ("a", "b", "c"):
            server.put("pods", percent(50, name))
        yield server


def test_a_restart_of_the_api_server_decodes_only_what_changed_meanwhile(
    api: ApiServer, tmp_path: Path
) -> None:
    followed = Followed(api, tmp_path)
    first = followed.listed()
    api.put("pods", percent(60, "a"))
    followed.next(ObjectChanged)
    assert (sorted(first), followed.decoded) == (["a", "b", "c"], ["a", "b", "c", "a"])

    api.watching = False
    api.put("pods", percent(70, "b"))
    api.delete("pods", "c", "team-a")
    api.put("pods", percent(50, "d"))
    api.faults += [Fault("list", how="reset"), Fault("list", status=503)]
    api.compact()
    api.watching = True
    followed.decoded.clear()
    again = followed.listed()

    assert again == {raw["metadata"]["name"]: raw["metadata"]["resourceVersion"] for raw in api.pods()}
    assert sorted(again) == ["a", "b", "d"]
    assert followed.decoded == ["b", "d"]
    assert followed.refusals == []
    assert any(followed.pauses)


@pytest.mark.parametrize("status", [400, 422])
def test_an_api_server_that_refuses_is_asked_for_pages_and_said_to_refuse_once(
    api: ApiServer, tmp_path: Path, status: int
) -> None:
    followed = Followed(api, tmp_path)
    api.faults.append(Fault("list", status=status, said="sendInitialEvents is forbidden"))

    lists = [sorted(followed.listed())]
    api.put("pods", percent(60, "a"))
    api.compact()
    lists.append(sorted(followed.listed()))

    assert lists == [["a", "b", "c"]] * 2
    assert followed.refusals == [f"{status} sendInitialEvents is forbidden"]
    assert ["sendInitialEvents" in asked for asked in api.made("list")] == [True, False, False]


def test_an_api_server_in_trouble_does_not_refuse(api: ApiServer, tmp_path: Path) -> None:
    followed = Followed(api, tmp_path)
    api.faults += [Fault("list", status=429), Fault("list", status=500)]

    failures = [followed.next(WatchFailed) for _ in range(2)]

    assert [str(each)[:24] for each in failures] == ["WatchFailed(sentence='42", "WatchFailed(sentence='50"]
    assert sorted(followed.listed()) == ["a", "b", "c"]
    assert followed.refusals == []
