"""The modes of namespaces as the policies read them."""

from collections.abc import Mapping
from typing import Any

from tests.timekeeper.worlds import T0
from timekeeper.accounts.budget_history import BudgetEntry, History, history_of
from timekeeper.core.request.host import CardHost
from timekeeper.runtime.api_server import Answered
from timekeeper.settler.mode_parameters import CONFIG_MAPS, ModeParameters, host_shares, modes


def history(*entries: tuple[str, str | None]) -> History:
    return history_of(BudgetEntry(key, text, T0) for key, text in entries)


ONE = ("team-a", "gpuHours: 1\nmode: observe")


def test_only_namespaces_with_another_mode_than_the_clusters_are_listed() -> None:
    of = history(ONE, ("team-b", "gpuHours: 1"), ("_mode.team-c", "meter"), ("_mode.team-d", "enforce"))

    assert modes(of, T0) == {"_default": "enforce", "team-a": "observe", "team-c": "meter"}
    assert modes(history(("_settings", "mode: observe"), ONE), T0) == {"_default": "observe"}


class Objects:
    """Takes what is applied, by path; with ``away`` it answers 500."""

    def __init__(self) -> None:
        self.applied: list[tuple[str, Mapping[str, str]]] = []
        self.away = False

    def call(self, method: str, path: str, body: Mapping[str, Any], **_: Any) -> Answered:
        assert method == "PATCH"
        if self.away:
            return Answered(500, {"message": "etcd is away"})
        name = path.partition("?")[0].removeprefix("/api/v1/namespaces/bursar-system/configmaps/")
        self.applied.append((name, body["data"]))
        return Answered(200, {})


def test_parameters_are_written_when_a_mode_changes_and_again_in_time() -> None:
    label = "_mode.team-c"
    labelled, changed = history(ONE, (label, "observe")), history(ONE, (label, "meter"))
    objects, now_s = Objects(), [0.0]
    room: list[CardHost | None] = [None]
    of = [None, history(), history(ONE), labelled, changed, history(ONE, (label, None)), history(ONE)]
    parameters = ModeParameters(
        objects,  # type: ignore[arg-type]
        "bursar-system",
        lambda: of[0],
        lambda: room[0],
        lambda: T0,
        lambda: now_s[0],
    )

    def written(at_s: float) -> Mapping[str, str] | None:
        now_s[0], objects.applied = at_s, []
        parameters.step()
        assert not objects.applied or [name for name, _ in objects.applied] == list(CONFIG_MAPS)
        judged = {name: data["_judged"] for name, data in objects.applied if "_judged" in data}
        assert judged == ({"bursar-modes-observed": "observe"} if objects.applied else {})
        return objects.applied[0][1] if objects.applied else None

    assert written(0) is None  # nothing is decided
    of.pop(0)
    assert written(1) == {"_default": "enforce"}
    assert written(2) is None
    of.pop(0)
    assert written(3) == {"_default": "enforce", "team-a": "observe"}
    of.pop(0)
    assert written(3.1) == {"_default": "enforce", "team-a": "observe", "team-c": "observe"}
    of.pop(0)
    assert written(3.2) == {"_default": "enforce", "team-a": "observe", "team-c": "meter"}
    of.pop(0)
    assert written(3.3) == {"_default": "enforce", "team-a": "observe"}
    of.pop(0)
    assert written(4) is None  # another entry changed
    assert written(18.5) == {"_default": "enforce", "team-a": "observe"}
    objects.away = True
    assert written(40) is None
    objects.away = False
    assert written(56) == {"_default": "enforce", "team-a": "observe"}
    room[0] = CardHost(32_000, 1 << 38, 16_000)
    told = {"_host": f"off 2000 32000 {1 << 38} 16000"}
    assert written(57) == {"_default": "enforce", "team-a": "observe", **told}


def test_how_much_goes_with_a_card_is_told_of_the_cluster_and_of_namespaces_that_say_otherwise() -> None:
    room, rest = CardHost(32_000, 1 << 38, 0), f"32000 {1 << 38} 1"
    of = history(
        ("_settings", "rules: {host-share: warn}\nhostShare: 3\nexempt: [vpa]"),
        ("team-a", "gpuHours: 1\nrules: {host-share: enforce}\nexempt: [admin, vpa]"),
        ("team-b", "gpuHours: 1\nhostShare: 1.5"),
        ("team-c", "gpuHours: 1"),
    )

    assert host_shares(of, T0, None) == {}
    assert host_shares(history(), T0, room) == {"_host": f"off 2000 {rest}"}
    assert host_shares(of, T0, room) == {
        "_host": f"warn 3000 {rest} vpa",
        "team-a.host": f"enforce 3000 {rest} admin vpa",
        "team-b.host": f"warn 1500 {rest} vpa",
    }
