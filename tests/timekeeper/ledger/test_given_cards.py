"""Where a device plugin picks the cards, a session is of the cards that it gave, by the node's agent: use,
idleness, models and rate; the placement counts until these are known, and where no plugin picks."""

import json
from typing import Any

import pytest

from tests import worlds
from tests.timekeeper.databases import ON_BOTH
from tests.timekeeper.rows import hours
from tests.timekeeper.worlds import (
    GPU,
    HOUR,
    MINUTE,
    SECOND,
    T0,
    Json,
    Town,
    agent_status,
    budgets,
    gpu_pod,
    token,
)
from timekeeper.accounts.card_use.figures import UsageTotals
from timekeeper.core.budgets.policy import GPU_HOUR

AGENT = token("agent-n1")
SETTINGS = "idle: evict\nidleAfter: 10m\nidleGrace: 5m\nidleBelow: 0.05\nweights: {H100: 3}"
MEMORY_MIB = 16_000
NVIDIAS = {"nvidia.com/gpu": "4"}


def node(*models: str, capacity: Json | None = None, silent: bool = False, **given: list[str]) -> Json:
    """A node of NVIDIA's device plugin, which gave these cards to pods, by the pods' names."""
    cards = worlds.inventory(
        *(worlds.card(at, model=each) for at, each in enumerate(models or ("A100",) * 4))
    )
    pods = {f"uid-{name}": uuids for name, uuids in given.items()}
    holders = {"version": 1, "boot": "b", "known": True, "pods": pods, "closed": ""}
    annotations = {"bursar.dev/inventory": cards, "bursar.dev/holders": json.dumps(holders)}
    conditions = [{"type": "Ready", "status": "Unknown" if silent else "True"}]
    return {
        "metadata": {"name": "n1", "annotations": annotations},
        "status": {"capacity": NVIDIAS if capacity is None else capacity, "conditions": conditions},
    }


def pod(name: str = "p", *cards: int, bound_ms: int = T0) -> Json:
    """A running pod of whole cards of the plugin, with a placement on these."""
    raw = gpu_pod(name, started_ms=bound_ms)
    placed = cards or (0,)
    raw["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": str(len(placed))}
    slices = [
        {"uuid": f"GPU-{at}", "index": at, "share_milli": 1_000, "memory_mib": MEMORY_MIB} for at in placed
    ]
    whole = {"version": 1, "containers": {"main": slices}}
    raw["metadata"]["annotations"]["bursar.dev/devices"] = json.dumps(whole)
    return raw


@pytest.fixture
def plugins(town: Town) -> Town:
    """A pod that was placed on GPU-0, before its agent has said where it is."""
    town.reviews.tokens[AGENT] = agent_status()
    entries = budgets(_settings=SETTINGS, team_a="gpuHours: 1000\nperiod: once")
    town.begin(("nodes", node()), ("configmaps", entries), ("pods", pod()))
    return town


def session(town: Town, name: str = "p") -> Json:
    found = town.get("/v1/sessions?namespace=team-a").get_json()["sessions"]
    one: Json = next(each for each in found if each["pod"] == name)
    return one


def cards(town: Town, name: str = "p") -> list[str]:
    found: list[str] = session(town, name)["cards"]
    return found


def reports(town: Town, minutes: int, **used: int) -> list[str]:
    """Each minute this use of the pod's cards, in per cent by UUID with _ for -; who is idle after it."""
    figures = [
        {"uuid": uuid.replace("_", "-"), "utilisation": each, "memory_mib": 1} for uuid, each in used.items()
    ]
    use = {"age_ms": 0, "pods": [{"uid": "uid-p", "cards": figures}], "cards": []}
    for _ in range(minutes):
        town.advance(MINUTE)
        body = {"version": 1, "boot": "run", "sequence": town.clock() // SECOND, "uses": [use]}
        assert town.post("/v1/nodeusage", body, AGENT).status_code == 200
    return [each["pod"] for each in town.get("/v1/idle").get_json()["pods"]]


def test_a_session_is_on_the_card_that_the_plugin_gave_once_the_agent_says_so(plugins: Town) -> None:
    assert cards(plugins) == ["GPU-0"]
    plugins.change("nodes", node(p=["GPU-2"]))
    assert cards(plugins) == ["GPU-2"]

    plugins.change("nodes", node())
    plugins.change("nodes", node(p=["GPU-2"], silent=True))
    plugins.resume()
    assert cards(plugins) == ["GPU-2"], "what was known once stays"
    plugins.change("nodes", node(p=["GPU-3"]))
    assert cards(plugins) == ["GPU-3"]


@ON_BOTH
def test_a_busy_pod_is_not_idle_on_the_card_of_its_placement(plugins: Town) -> None:
    plugins.change("nodes", node(p=["GPU-2"]))

    assert reports(plugins, 20, GPU_0=0, GPU_2=95) == [], "an older agent reports the placement's card too"
    assert reports(plugins, 20, GPU_0=95, GPU_2=0) == ["p"]


def test_what_is_reported_before_the_cards_are_known_makes_no_pod_idle(plugins: Town) -> None:
    assert reports(plugins, 20, GPU_2=0) == []


def test_measured_use_is_of_the_card_that_the_plugin_gave(plugins: Town) -> None:
    plugins.change("nodes", node(p=["GPU-2"]))
    reports(plugins, 3, GPU_0=0, GPU_2=50)

    with plugins.store.reading() as connection:
        (used,) = hours(connection, "uid-p", "node").values()
    assert used == UsageTotals(MINUTE, MINUTE * GPU // 2, MINUTE), (
        "two reports, of at most half a minute each"
    )


def test_a_session_that_opens_later_than_the_report_opens_on_these_cards(plugins: Town) -> None:
    plugins.change("nodes", node(late=["GPU-3"]))
    plugins.change("pods", pod("late", 1))

    assert (cards(plugins, "late"), session(plugins, "late")["rateMilli"]) == (["GPU-3"], GPU)


def test_of_several_cards_those_that_it_has_stay_and_the_others_take_the_rest(plugins: Town) -> None:
    two, mixed = pod("two", 1, 2), pod("mixed", 0, 1)
    mixed["spec"]["containers"].append(worlds.container("aux"))
    mixed["spec"]["containers"][1]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    mixed["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": "1"}
    devices = json.loads(mixed["metadata"]["annotations"]["bursar.dev/devices"])
    main, aux = ([each] for each in devices["containers"]["main"])
    devices["containers"] = {"main": main, "aux": aux}
    mixed["metadata"]["annotations"]["bursar.dev/devices"] = json.dumps(devices)
    for each in (two, mixed):
        plugins.change("pods", each)
    plugins.change("nodes", node(two=["GPU-3", "GPU-2"], mixed=["GPU-1", "GPU-3"]))

    assert (sorted(cards(plugins, "two")), sorted(cards(plugins, "mixed"))) == (
        ["GPU-2", "GPU-3"],
        ["GPU-1", "GPU-3"],
    )
    assert session(plugins, "two")["rateMilli"] == session(plugins, "mixed")["rateMilli"] == 2 * GPU


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"p": ["GPU-9"]}, "it is none of the inventory"),
        ({"p": ["GPU-1", "GPU-2"]}, "it has more than it was placed on"),
        ({"p": []}, "none is known"),
        ({"other": ["GPU-2"]}, "another pod's"),
    ],
)
def test_where_its_cards_cannot_be_told_the_placement_stays(
    plugins: Town, told: dict[str, Any], why: str
) -> None:
    plugins.change("nodes", node(**told))

    assert cards(plugins) == ["GPU-0"], why


@pytest.mark.parametrize("plugin", ["", "hami"])
def test_where_no_plugin_picks_the_placement_counts(plugins: Town, plugin: str) -> None:
    raw = node(capacity=NVIDIAS if plugin else {}, p=["GPU-2"])
    if plugin:
        described = [
            {
                "id": f"GPU-{at}",
                "index": at,
                "count": 10,
                "devmem": MEMORY_MIB,
                "devcore": 100,
                "type": "A100",
            }
            | {"numa": 0, "health": True, "mode": "hami-core"}
            for at in range(4)
        ]
        raw["metadata"]["annotations"]["hami.io/node-nvidia-register"] = json.dumps(described)
    plugins.change("nodes", raw)

    assert cards(plugins) == ["GPU-0"]


def test_the_rate_is_that_of_the_model_that_the_plugin_gave_from_the_beginning(plugins: Town) -> None:
    models = ("A100", "A100", "H100", "H100")
    plugins.change("nodes", node(*models))
    plugins.advance(MINUTE)
    assert plugins.budget()["pending"] == MINUTE * GPU
    plugins.change("nodes", node(*models, p=["GPU-2"]))

    assert (session(plugins)["rateMilli"], session(plugins)["models"]) == (3 * GPU, "H100")
    assert plugins.budget()["pending"] == 3 * MINUTE * GPU
    plugins.change("pods", gpu_pod(started_ms=T0, ended_ms=T0 + 2 * MINUTE))
    plugins.advance(HOUR)
    assert plugins.postings() == [(T0, T0 + 2 * MINUTE, 3 * GPU, "settled")]


def test_of_one_model_the_rate_stays_also_where_its_weight_is_another_by_now(plugins: Town) -> None:
    entries = budgets(_settings=SETTINGS.replace("H100: 3", "A100: 2"), team_a="gpuHours: 1000\nperiod: once")
    plugins.change("configmaps", entries)
    plugins.change("nodes", node(p=["GPU-2"]))

    assert (cards(plugins), session(plugins)["rateMilli"]) == (["GPU-2"], GPU)


def test_an_ended_session_stays_as_it_was_charged(plugins: Town) -> None:
    plugins.clock.turn(MINUTE)
    plugins.change("pods", gpu_pod(started_ms=T0, ended_ms=T0 + MINUTE))
    plugins.change("nodes", node("A100", "A100", "H100", p=["GPU-2"]))
    plugins.advance(HOUR)

    assert plugins.postings() == [(T0, T0 + MINUTE, GPU, "settled")]


def test_a_rate_that_is_another_one_now_changes_what_all_periods_since_left(town: Town) -> None:
    models = "A100", "A100", "H100"
    entries = budgets(_settings=SETTINGS, team_a="gpuHours: 10\nperiod: hour\ncarryOver: 0.5")
    town.begin(("nodes", node(*models)), ("configmaps", entries), ("pods", pod()))
    for _ in range(3):
        town.advance(HOUR)
    town.advance(MINUTE)
    town.change("nodes", node(*models, p=["GPU-2"]))

    carried: dict[int, float] = {}
    for each in town.get("/v1/grants?subject=team-a").get_json()["grants"]:
        if each["kind"] == "carry":
            hour = (each["from"] - T0) // HOUR
            carried[hour] = carried.get(hour, 0) + each["amount"] / GPU_HOUR
    assert carried == {1: (10 - 3) / 2, 2: (10 + 3.5 - 3) / 2, 3: (10 + 5.25 - 3) / 2}
