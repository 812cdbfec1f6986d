"""Budget ConfigMaps as they come, change, break and go."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from tests.timekeeper.clocks import at_ms
from tests.timekeeper.databases import ON_BOTH
from tests.timekeeper.worlds import DAY, HOUR, MINUTE, SECOND, T0, Town, budgets, gpu_pod, node
from tests.worlds import Json
from timekeeper import metrics
from timekeeper.accounts.budget_history import History
from timekeeper.api.ledger.ledger_reader import LedgerReader
from timekeeper.core.budgets.policy import GPU_HOUR
from timekeeper.core.texts import exact_moment, moment
from timekeeper.store import ledger as reading
from timekeeper.store.engine.engine import Store

ONE_DATABASE = "what ConfigMaps come to; test_story and test_postings write the same entries on both"

MONTH = "gpuHours: 10\nperiod: month\nonExhausted: deprioritize"


def hear(town: Town, name: str = "bursar-budgets", **entries: str) -> None:
    town.clock.turn(SECOND)
    town.change("configmaps", budgets(name, **entries))


def grants(town: Town, namespace: str = "team-a") -> list[int]:
    with town.store.reading() as connection:
        found = connection.exec_driver_sql("SELECT subject, amount FROM grants ORDER BY id").all()
    return [amount for subject, amount in found if subject == namespace]


def test_without_budgets_everyone_is_unlimited(town: Town) -> None:
    town.begin()

    assert town.get("/v1/standings").get_json()["default"]["standing"] == "UNLIMITED"
    budget = town.budget()
    assert (budget["standing"], budget["granted"], budget["entry"]) == ("UNLIMITED", None, None)
    assert budget["gpuHours"]["granted"] is None


def test_a_broken_entry_keeps_the_last_good_one_in_force(town: Town) -> None:
    town.begin(("configmaps", budgets(team_a=MONTH, team_b=MONTH)))

    hear(town, team_a="gpuHours: lots", team_b="gpuHours: 20\nperiod: month\nonExhausted: deprioritize")

    assert town.budget()["gpuHours"]["granted"] == "10"
    assert town.budget("team-b")["gpuHours"]["granted"] == "20"
    error = town.budget()["lastError"]
    assert error.startswith("ConfigMap bursar-budgets: team-a, line 1, gpuHours:")
    assert town.budget("team-b")["lastError"] is None
    assert town.get("/v1/budgets").get_json()["broken"] == [{"key": "team-a", "error": error}]
    (notice,) = town.notices
    assert (notice.reason, notice.config_map.name) == ("BrokenBudget", "bursar-budgets")
    assert notice.config_map.uid == "uid-bursar-budgets"
    assert error in notice.message


def test_a_broken_entry_is_reported_once_and_its_mending_clears_it(town: Town) -> None:
    town.begin(("configmaps", budgets(team_a=MONTH)))
    hear(town, team_a="gpuHours: lots")
    hear(town, team_a="gpuHours: lots", team_b=MONTH)
    assert len(town.notices) == 1

    hear(town, team_a=MONTH)

    assert town.budget()["lastError"] is None


def test_a_config_map_that_is_deleted_with_its_entries_is_reported_at_once(town: Town) -> None:
    """Its namespaces are without limit two minutes later: that is not silent, not over a restart, and ends
    once it is back."""
    everything = budgets(team_a=MONTH, team_b=MONTH), budgets("bursar-settings", _settings="lookahead: 1m")
    town.begin(*(("configmaps", config_map) for config_map in everything))
    town.clock.turn(SECOND)

    for config_map in everything:
        town.change("configmaps", config_map, deleted=True)

    since = T0 + SECOND
    assert town.budget()["gpuHours"]["granted"] == "10"
    assert town.settler.ledger.history.settings(town.clock()).lookahead_ms == MINUTE
    each = [("EntriesGone", "bursar-budgets"), ("EntriesGone", "bursar-settings")]
    assert [(notice.reason, notice.config_map.name) for notice in town.notices] == each
    first, until = moment(since, to="seconds"), moment(since + 2 * MINUTE, to="seconds")
    gone = town.get("/v1/budgets").get_json()["broken"]
    assert gone[0] == {
        "key": "bursar-budgets",
        "error": f"ConfigMap bursar-budgets is gone since {first}, and with it team-a, team-b: in force until"
        f" {until}, unless another one has it",
    }
    assert metrics.BROKEN._value.get() == 2
    town.clock.turn(2 * MINUTE - 1)
    town.tick()
    assert town.budget()["gpuHours"]["granted"] == "10"
    town.clock.turn(1)
    town.tick()
    town.resume()

    assert town.budget()["granted"] is None
    assert [(notice.reason, notice.config_map.name) for notice in town.notices] == [*each, *reversed(each)]
    gone = town.get("/v1/budgets").get_json()["broken"]
    assert [broken["key"] for broken in gone] == ["bursar-budgets", "bursar-settings"]
    assert gone[0]["error"].startswith(
        "ConfigMap bursar-budgets is gone, and 2 entries of it ended at"
        f" {moment(since + 2 * MINUTE)}: team-a, team-b."
    )
    assert metrics.BROKEN._value.get() == 2
    assert ended_entries(town) == [], "their ConfigMap's error names them"
    town.change("configmaps", everything[0])
    assert [broken["key"] for broken in town.get("/v1/budgets").get_json()["broken"]] == ["bursar-settings"]
    town.advance(DAY + HOUR)
    assert town.get("/v1/budgets").get_json()["broken"] == []


def test_after_a_restart_entries_that_nobody_has_count_for_two_minutes_more(town: Town) -> None:
    """Who deleted what, and when, the new settler cannot know."""
    town.begin(("configmaps", budgets("more", team_a=MONTH)), ("configmaps", budgets(team_b=MONTH)))
    town.clock.turn(SECOND)
    town.change("configmaps", budgets("more", team_a=MONTH), deleted=True)

    town.clock.turn(MINUTE)
    town.resume()
    town.clock.turn(2 * MINUTE - SECOND)
    town.tick()

    assert town.standing("team-a") == "IN_BUDGET"
    (broken,) = town.get("/v1/budgets").get_json()["broken"]
    assert broken["error"].startswith("ConfigMaps are gone since ")
    town.clock.turn(SECOND)
    town.tick()
    assert (town.standing("team-a"), town.standing("team-b")) == ("UNLIMITED", "IN_BUDGET")


def test_what_was_deleted_while_no_settler_looked_counts_for_two_minutes_and_is_named_then(
    town: Town,
) -> None:
    everything = budgets(team_a=MONTH), budgets("bursar-settings", _settings="lookahead: 1m")
    town.begin(*(("configmaps", config_map) for config_map in everything))

    town.clock.turn(HOUR)
    for config_map in everything:
        town.hear("configmaps", config_map, deleted=True, unheard=True)
    town.resume()

    names = ["bursar-budgets", "bursar-settings"]
    assert town.standing("team-a") == "IN_BUDGET"
    assert [broken["key"] for broken in town.get("/v1/budgets").get_json()["broken"]] == names
    town.clock.turn(2 * MINUTE)
    town.tick()
    assert town.standing("team-a") == "UNLIMITED"
    gone = town.get("/v1/budgets").get_json()["broken"]
    assert [broken["error"].partition(",")[0] for broken in gone] == [
        f"ConfigMap {name} is gone" for name in names
    ]


def test_what_takes_the_place_of_a_config_map_that_is_gone_counts_at_once(town: Town) -> None:
    own, more = budgets(team_a=MONTH, team_b=MONTH), budgets("more", team_a="gpuHours: 3\nperiod: month")
    town.begin(("configmaps", own))
    town.clock.turn(SECOND)
    town.change("configmaps", own, deleted=True)

    town.clock.turn(SECOND)
    town.change("configmaps", more)
    assert (town.budget()["gpuHours"]["granted"], town.standing("team-b")) == ("3", "IN_BUDGET")

    hear(town, team_c=MONTH)
    assert (town.standing("team-b"), town.standing("team-c")) == ("UNLIMITED", "IN_BUDGET")
    assert town.get("/v1/budgets").get_json()["broken"] == []


def generation(ending: str, created_ms: int, **entries: str) -> Json:
    """What kustomize's configMapGenerator makes."""
    made = budgets(f"bursar-budgets-{ending}", **entries)
    made["metadata"]["creationTimestamp"] = exact_moment(created_ms)
    return made


@pytest.mark.parametrize("endings", [("7h2k9m4f5b", "2c7b8d9f4g"), ("2c7b8d9f4g", "7h2k9m4f5b")])
def test_of_two_generations_the_newest_counts_alone(town: Town, endings: tuple[str, str]) -> None:
    old, new = endings
    of_old = generation(old, T0 - DAY, team_a=MONTH, team_b=MONTH)
    of_new = generation(new, T0, team_a="gpuHours: 3\nperiod: month")
    town.begin(("configmaps", of_old))
    assert town.budget()["gpuHours"]["granted"] == "10"

    town.clock.turn(SECOND)
    town.change("configmaps", of_new)

    assert (town.budget()["gpuHours"]["granted"], town.standing("team-b")) == ("3", "UNLIMITED")
    assert town.get("/v1/budgets").get_json()["broken"] == []
    town.clock.turn(SECOND)
    town.change("configmaps", of_old, deleted=True)
    assert (town.budget()["gpuHours"]["granted"], town.standing("team-b")) == ("3", "UNLIMITED")
    town.clock.turn(SECOND)
    town.change("configmaps", of_new, deleted=True)
    town.clock.turn(MINUTE)
    town.tick()
    assert town.budget()["gpuHours"]["granted"] == "3"


def test_files_whose_names_only_look_alike_all_count(town: Town) -> None:
    names = ("teams-north", "teams-south", "teams-mgmt", "teams-2026")
    town.begin(*(("configmaps", budgets(name, **{f"of-{name}": MONTH})) for name in names))

    assert {town.standing(f"of-{name}") for name in names} == {"IN_BUDGET"}


def mode(town: Town) -> str:
    return str(town.get("/v1/standings").get_json()["default"]["mode"])


def test_the_mode_has_an_object_of_its_own_and_namespaces_come_before_it(town: Town) -> None:
    town.begin(
        ("configmaps", budgets("bursar-mode", mode="observe", placement="off")),
        ("configmaps", budgets("bursar-settings", _settings="lookahead: 1m")),
        ("configmaps", budgets(team_a=f"{MONTH}\nmode: enforce")),
    )

    assert (mode(town), town.budget()["mode"], town.budget()["modeFrom"]) == ("observe", "enforce", "entry")
    assert town.get("/v1/budgets/team-b").get_json()["modeFrom"] == "cluster"
    settings = town.settler.ledger.history.settings(town.clock())
    assert (settings.placement, settings.lookahead_ms) == ("off", MINUTE)
    town.notices.clear()
    at_first = town.clock()
    hear(town, "bursar-mode", mode="enforce", placement="on")

    history = town.settler.ledger.history
    assert [history.settings(at).mode for at in (at_first, town.clock())] == ["observe", "enforce"]
    assert [(notice.reason, notice.config_map.name) for notice in town.notices] == [
        ("ModeChanged", "bursar-mode")
    ]
    assert town.notices[0].message.startswith("_mode/bursar-mode: the mode changes from observe to enforce: ")
    hear(town, "bursar-settings", _settings="lookahead: 2m\nmode: observe")
    assert mode(town) == "enforce"


@pytest.mark.parametrize("wrong", [{"mode": "observed"}, {"placement": "off"}, {"mode": "observe", "x": "1"}])
def test_a_mistake_in_the_modes_object_leaves_the_last_good_one_in_force(town: Town, wrong: Json) -> None:
    town.begin(("configmaps", budgets("bursar-mode", mode="observe")))
    hear(town, "bursar-mode", **wrong)

    assert mode(town) == "observe"
    (broken,) = town.get("/v1/budgets").get_json()["broken"]
    assert broken["error"].startswith("ConfigMap bursar-mode: ")


def test_the_mode_stays_for_two_minutes_where_its_object_is_deleted(town: Town) -> None:
    own = budgets("bursar-mode", mode="observe")
    town.begin(("configmaps", own))
    town.clock.turn(SECOND)
    town.change("configmaps", own, deleted=True)

    town.clock.turn(2 * MINUTE - SECOND)
    town.tick()
    assert mode(town) == "observe"
    (broken,) = town.get("/v1/budgets").get_json()["broken"]
    assert broken["error"].startswith("ConfigMap bursar-mode is gone since ")
    town.clock.turn(SECOND)
    town.tick()
    assert mode(town) == "enforce"


def test_an_upgrade_keeps_the_mode_of_settings_until_both_say_the_same(town: Town) -> None:
    """Of a release before there was an object for the mode."""
    before = budgets("bursar-settings", _settings="mode: observe\nlookahead: 1m")
    town.begin(("configmaps", before))
    town.notices.clear()

    hear(town, "bursar-mode", mode="enforce")

    assert mode(town) == "observe"
    (notice,) = town.notices
    assert (notice.reason, notice.config_map.name) == ("BrokenBudget", "bursar-mode")
    assert "mode: it does not count yet, for mode: observe in _settings" in notice.message
    hear(town, "bursar-settings", _settings="lookahead: 1m")
    assert mode(town) == "enforce"
    assert town.get("/v1/budgets").get_json()["broken"] == []


def test_once_the_modes_object_has_counted_what_is_left_in_settings_changes_nothing(town: Town) -> None:
    """Observe to enforce without pruning."""
    town.begin(("configmaps", budgets("bursar-settings", _settings="mode: observe")))
    hear(town, "bursar-mode", mode="observe")
    hear(town, "bursar-mode", mode="enforce")

    assert mode(town) == "enforce"
    town.resume()
    assert mode(town) == "enforce"


def ended_entries(town: Town) -> list[str]:
    """What the finding says, if there is one."""
    found = town.get("/v1/findings").get_json()["findings"]
    return [finding["sentence"] for finding in found if finding["code"] == "ended-entries"]


def test_entries_that_move_to_another_config_map_are_not_reported_and_those_removed_are_named_for_a_day(
    town: Town,
) -> None:
    town.begin(("configmaps", budgets(team_a=MONTH, team_b=MONTH)))
    hear(town, "others", team_a=MONTH, team_b=MONTH)
    town.change("configmaps", budgets(team_a=MONTH, team_b=MONTH), deleted=True)
    town.advance(MINUTE)
    hear(town, "others", team_a=MONTH)
    town.resume()
    town.advance(MINUTE)

    assert town.budget("team-b")["granted"] is None
    assert "EntriesGone" not in {notice.reason for notice in town.notices}
    assert town.get("/v1/budgets").get_json()["broken"] == []
    assert ended_entries(town) == ["1 budget entry ended in the last day, and is in no ConfigMap: team-b"]
    hear(town, "others", _defaults=MONTH)
    assert ended_entries(town) == [
        "2 budget entries ended in the last day, and are in no ConfigMap: team-a, team-b"
    ]
    hear(town, "others", team_b=MONTH, _defaults=MONTH)
    assert ended_entries(town) == ["1 budget entry ended in the last day, and is in no ConfigMap: team-a"]
    town.advance(DAY + HOUR)
    assert ended_entries(town) == []


def test_the_last_good_entry_outlives_a_restart(town: Town) -> None:
    town.begin(("configmaps", budgets(team_a=MONTH)))
    hear(town, team_a="gpuHours: lots")

    town.resume()

    assert town.budget()["gpuHours"]["granted"] == "10"
    assert len(town.notices) == 1


def test_broken_settings_keep_the_last_good_ones_in_force(town: Town) -> None:
    town.begin(("configmaps", budgets(_settings="lookahead: 1m")))
    hear(town, _settings="lookahead: soon")

    with town.store.reading() as connection:
        assert "_settings" in reading.entry_errors(connection)
    assert town.settler.ledger.history.settings(town.clock()).lookahead_ms == MINUTE


def test_an_entry_that_is_removed_ends(town: Town) -> None:
    town.begin(("configmaps", budgets(team_a=MONTH)))
    hear(town)

    assert town.standing() == "UNLIMITED"


def test_a_config_map_that_is_deleted_takes_its_entries_along(town: Town) -> None:
    more = budgets("more", team_b=MONTH)
    town.begin(("configmaps", budgets(team_a=MONTH)), ("configmaps", more))
    assert town.standing("team-b") == "IN_BUDGET"

    town.clock.turn(SECOND)
    town.change("configmaps", more, deleted=True)
    assert town.standing("team-b") == "IN_BUDGET"
    town.clock.turn(2 * MINUTE)
    town.tick()

    assert (town.standing("team-a"), town.standing("team-b")) == ("IN_BUDGET", "UNLIMITED")


def test_a_config_map_that_loses_its_label_takes_its_entries_along(town: Town) -> None:
    more = budgets("more", team_b=MONTH)
    town.begin(("configmaps", more))
    town.clock.turn(SECOND)
    town.change("configmaps", {**more, "metadata": {**more["metadata"], "labels": {}}})
    assert town.standing("team-b") == "IN_BUDGET"
    town.clock.turn(2 * MINUTE)
    town.tick()

    assert town.standing("team-b") == "UNLIMITED"


def test_a_key_in_two_config_maps_counts_in_the_first_and_is_an_error(town: Town) -> None:
    town.begin(
        ("configmaps", budgets(team_a=MONTH)),
        ("configmaps", budgets("another", team_a="gpuHours: 99\nperiod: month")),
    )

    assert town.budget()["gpuHours"]["granted"] == "10"
    error = town.budget()["lastError"]
    assert error.startswith("ConfigMap another: team-a, line 1: ")
    assert "also defined in ConfigMap bursar-budgets" in error


def test_what_is_not_built_is_reported_on_the_config_map_and_in_the_api(town: Town) -> None:
    town.begin(("configmaps", budgets(team_a="gpuHours: 10\nevictGrace: 1m\nevictRate: 4")))

    told = [(notice.reason, notice.message) for notice in town.notices]
    assert told == [
        ("IneffectiveField", "team-a: evictGrace: it has no effect without onExhausted: evict"),
        ("IneffectiveField", "team-a: evictRate: it has no effect without onExhausted: evict"),
    ]
    assert [f"team-a: {warning}" for warning in town.budget()["warnings"]] == [text for _, text in told]


def test_a_warning_in_each_of_many_entries_is_one_notice_with_their_number(town: Town) -> None:
    town.begin(
        ("namespaces", {"metadata": {"name": "team-0"}}),
        ("configmaps", budgets(**{f"team_{number}": f"{MONTH}\nevictRate: 4" for number in range(1_000)})),
    )

    some = "team-0, team-1, team-10, team-100, team-101 and others"
    first = "team-1: namespace team-1 does not exist. The budget applies once it does; is the name right?"
    assert [notice.message for notice in town.notices] == [
        f"1,000 entries ({some}), as team-0: evictRate: it has no effect without onExhausted: evict",
        f"999 entries (team-1, team-10, team-100, team-101, team-102 and others), as {first}",
    ]


def test_an_entry_whose_namespace_does_not_exist_is_reported_once_until_there_is_one(town: Town) -> None:
    metric = "bursar_budgets_without_namespace"
    entries = {"_defaults": MONTH, "team_a": MONTH, "teem_b": MONTH}
    town.begin(("configmaps", budgets(**entries)), ("namespaces", {"metadata": {"name": "team-a"}}))

    assert [(notice.reason, notice.message) for notice in town.notices] == [
        (
            "MissingNamespace",
            "teem-b: namespace teem-b does not exist. The budget applies once it does; is the name right?",
        )
    ]
    hear(town, **entries, _settings="lookahead: 5m")
    assert len(town.notices) == 1
    assert f"{metric} 1.0" in town.get("/metrics").text

    town.change("namespaces", {"metadata": {"name": "teem-b"}})
    assert f"{metric} 0.0" in town.get("/metrics").text

    town.change("namespaces", {"metadata": {"name": "team-a"}}, deleted=True)
    assert [notice.message.partition(":")[0] for notice in town.notices] == ["teem-b", "team-a"]


def test_of_the_settings_everything_is_done(town: Town) -> None:
    town.begin(("configmaps", budgets(_settings="overuse: evict")))

    assert town.notices == []


@pytest.mark.parametrize(
    "later",
    [
        budgets("bursar-settings", _settings="lookahead: 5m"),
        budgets("bursar-settings", _settings="mode: enforce"),
        budgets("bursar-settings"),
    ],
    ids=["left out", "written", "removed"],
)
def test_the_end_of_observing_is_announced_on_the_config_map_and_in_the_metric(
    town: Town, later: Json
) -> None:
    """Of a release before there was an object for the mode."""
    town.begin(("configmaps", budgets("bursar-settings", _settings="mode: observe")))
    assert 'bursar_mode{mode="observe"} 1.0' in town.get("/metrics").text
    town.notices.clear()

    town.clock.turn(SECOND)
    town.hear("configmaps", later)
    town.tick()

    (notice,) = (notice for notice in town.notices if notice.reason == "ModeChanged")
    assert notice.config_map.name == "bursar-settings"
    assert notice.message.startswith("_mode/bursar-mode: the mode changes from observe to enforce")
    assert 'bursar_mode{mode="enforce"} 1.0' in town.get("/metrics").text


def test_a_namespace_that_begins_to_enforce_alone_is_announced_and_one_that_follows_is_not(
    town: Town,
) -> None:
    observing = {"_settings": "mode: observe", "team_b": MONTH}
    town.begin(("configmaps", budgets(team_a=MONTH + "\nmode: observe", **observing)))
    town.notices.clear()

    hear(town, team_a=MONTH + "\nmode: enforce", **observing)

    assert [notice.message.partition(":")[0] for notice in town.notices] == ["team-a"]


def test_the_settings_of_their_own_config_map_survive_others_beside_it(town: Town) -> None:
    town.begin(
        ("configmaps", budgets("bursar-settings", _settings="mode: observe")),
        ("configmaps", budgets(_settings="lookahead: 5m", team_a=MONTH)),
    )

    assert town.get("/v1/standings").get_json()["default"]["mode"] == "observe"
    assert [(notice.reason, notice.config_map.name) for notice in town.notices][:1] == [
        ("BrokenBudget", "bursar-budgets")
    ]


def test_a_changed_amount_is_a_corrective_grant_in_the_running_period(town: Town) -> None:
    town.begin(("configmaps", budgets(team_a=MONTH)))
    hear(town, team_a="gpuHours: 4\nperiod: month")
    hear(town, team_a="gpuHours: 7\nperiod: month")

    assert grants(town) == [10 * GPU_HOUR, -6 * GPU_HOUR, 3 * GPU_HOUR]
    assert town.budget()["gpuHours"]["granted"] == "7"


def test_a_period_is_granted_once_however_often_the_settler_starts(town: Town) -> None:
    town.begin(("configmaps", budgets(team_a=MONTH)))
    for _ in range(3):
        town.clock.turn(HOUR)
        town.resume()

    assert grants(town) == [10 * GPU_HOUR]


def test_a_new_period_is_a_new_grant_without_an_event(town: Town) -> None:
    town.begin(("configmaps", budgets(team_a=MONTH)))
    before = town.get("/v1/standings").get_json()["namespaces"]["team-a"]["validUntil"]

    town.clock.at_ms = at_ms("2026-12-01T00:00:00Z")
    town.tick()

    assert before == town.clock()
    assert grants(town) == [10 * GPU_HOUR, 10 * GPU_HOUR]
    assert town.budget()["gpuHours"]["granted"] == "10"


def test_a_changed_period_starts_afresh(town: Town) -> None:
    town.begin(("nodes", node()), ("configmaps", budgets(team_a=MONTH)))
    town.change("pods", gpu_pod(started_ms=T0 - HOUR, ended_ms=T0, bound_ms=T0 - HOUR))
    assert town.budget()["gpuHours"]["remaining"] == "9"

    hear(town, team_a="gpuHours: 3\nperiod: week")

    budget = town.budget()
    assert (budget["gpuHours"]["granted"], budget["gpuHours"]["remaining"]) == ("3", "3")
    assert budget["period"]["from"] == town.clock()


def test_a_budget_taken_away_and_given_again_refills_nothing(town: Town) -> None:
    town.begin(("nodes", node()), ("configmaps", budgets(team_a=MONTH)))
    town.change("pods", gpu_pod(started_ms=T0 - HOUR, ended_ms=T0, bound_ms=T0 - HOUR))
    hear(town)
    hear(town, team_a=MONTH)

    assert town.budget()["gpuHours"]["remaining"] == "9"
    assert grants(town) == [10 * GPU_HOUR]


def test_the_default_holds_for_a_namespace_without_an_entry(town: Town) -> None:
    town.begin(("nodes", node()), ("configmaps", budgets(_defaults="gpuHours: 1\nperiod: day")))
    day = at_ms("2026-11-20T00:00:00Z")
    standings = town.get("/v1/standings").get_json()
    assert standings["default"]["remaining"] == GPU_HOUR
    assert standings["namespaces"] == {}
    assert grants(town) == []

    town.change("pods", gpu_pod(started_ms=day, ended_ms=day + 2 * HOUR, bound_ms=day))

    assert (town.standing("team-a"), town.standing("team-b")) == ("OVER_BUDGET", "IN_BUDGET")
    assert town.budget("team-a")["entry"] == "_defaults"
    assert town.budget("team-b")["gpuHours"]["remaining"] == "1"
    assert grants(town) == [GPU_HOUR]
    listed = town.get("/v1/budgets").get_json()["budgets"]
    assert [each["namespace"] for each in listed] == ["team-a"]


def test_yesterdays_use_of_the_default_lists_no_namespace_today(town: Town) -> None:
    town.begin(("nodes", node()), ("configmaps", budgets(_defaults="gpuHours: 1\nperiod: day")))
    town.hear("pods", gpu_pod(started_ms=T0, ended_ms=T0 + 2 * HOUR))
    town.advance(3 * HOUR, heard=False)
    town.advance(DAY, heard=False)

    assert town.get("/v1/standings").get_json()["namespaces"] == {}


def test_a_clock_turned_back_does_not_put_a_new_entry_behind_an_old_one(town: Town) -> None:
    town.begin(("configmaps", budgets(team_a=MONTH)))
    town.clock.turn(-HOUR)
    hear(town, team_a="gpuHours: 5\nperiod: month")

    assert town.budget()["gpuHours"]["granted"] == "5"


def test_entries_that_a_later_release_cannot_read_are_reported_at_its_start(
    town: Town, capfd: pytest.CaptureFixture[str]
) -> None:
    town.begin(("configmaps", budgets(team_a=MONTH)))
    with town.store.writing() as connection:
        connection.exec_driver_sql(
            "INSERT INTO entries (key, text, from_ms) SELECT key, 'gpuHours: lots', from_ms + 1 FROM entries"
        )

    town.restart()

    assert "event=stored-entry-unreadable entry=team-a" in capfd.readouterr().err


def modes_of(town: Town, *names: str) -> dict[str, tuple[str, str]]:
    """The mode of each, and what it comes from, as the API says it."""
    found = ((name, town.get(f"/v1/budgets/{name}").get_json()) for name in names)
    return {name: (budget["mode"], budget["modeFrom"]) for name, budget in found}


def labelled(name: str, mode: str) -> tuple[str, Json]:
    return "namespaces", {"metadata": {"name": name, "labels": {"bursar.dev/mode": mode}}}


def test_each_budget_has_the_mode_in_force_and_what_it_comes_from(town: Town) -> None:
    own = {"team_a": MONTH + "\nmode: meter", "team_b": MONTH, "team_d": MONTH}
    entries = budgets(_settings="mode: enforce", _defaults="gpuHours: 1\nmode: observe", **own)
    town.begin(("configmaps", entries), labelled("team-a", "observe"), labelled("team-b", "observe"))

    assert modes_of(town, "team-a", "team-b", "team-d", "unknown") == {
        "team-a": ("meter", "entry"),
        "team-b": ("observe", "label"),
        "team-d": ("enforce", "cluster"),
        "unknown": ("observe", "defaults"),
    }
    group = town.get("/v1/budgets/_group.lab").get_json()
    assert (group["mode"], group["modeFrom"]) == (None, None)
    assert town.get("/v1/explain/team-b/p").get_json()["mode"] == (
        "team-b is in mode observe, by its label bursar.dev/mode: pods are charged, users are warned, and no "
        "pod is refused, demoted or changed"
    )


def test_a_ledger_that_governs_nothing_meters_whatever_entries_labels_and_settings_say(town: Town) -> None:
    town.only_meter = True
    town.start_anew()
    town.serve()
    entries = budgets(_settings="mode: observe", team_a=MONTH + "\nmode: enforce", team_b=MONTH)
    town.begin(("configmaps", entries), labelled("team-b", "enforce"))

    names = ("team-a", "team-b", "unknown")
    assert modes_of(town, *names) == dict.fromkeys(names, ("meter", "ledger"))
    published = town.get("/v1/standings").get_json()
    shown = (published["settings"], published["default"], *published["namespaces"].values())
    assert [each["mode"] for each in shown] == ["meter"] * 4
    assert 'bursar_mode{mode="meter"} 1.0' in town.get("/metrics").text
    assert "ModeChanged" not in {each.reason for each in town.notices}


class Statements:
    """What is sent to the database, and the most rows that one statement has."""

    def __init__(self, store: Store) -> None:
        self.sent, self.most = list[str](), 0
        event.listen(store.engine, "before_cursor_execute", self._before)

    def _before(self, *about: Any) -> None:
        _, _, statement, given, context, is_many = about
        self._see(statement, given, is_many)
        for _, text, rows in context.execution_options.get("bursar_before", ()):  # of the same pipeline
            self._see(text, rows, isinstance(rows, list))

    def _see(self, statement: str, given: Any, is_many: bool) -> None:
        self.sent.append(statement)
        columns = given.values() if isinstance(given, dict) else given or ()
        arrays = (len(each) for each in columns if isinstance(each, list))
        self.most = max(self.most, len(given) if is_many else max(arrays, default=1))


@ON_BOTH
def test_a_change_reads_no_entry_again_and_no_statement_has_more_than_2000_rows(town: Town) -> None:
    every = {f"team_{number}": f"gpuHours: {number}\nperiod: month" for number in range(4_100)}
    pods = [("pods", gpu_pod(f"p{number}", started_ms=T0)) for number in range(2_100)]
    statements = Statements(town.store)

    town.begin(("configmaps", budgets(**every)), ("nodes", node()), *pods)
    hear(town, **every | {"team_1": "gpuHours: 2"})
    town.advance(HOUR)

    with town.store.reading() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM sessions").scalar_one() == 2_100
    assert statements.most == 2_000
    assert not [each for each in statements.sent if "FROM entries" in each]


def test_a_worker_reads_the_entries_that_it_has_not_read(town: Town) -> None:
    town.begin(("configmaps", budgets(team_a=MONTH, team_b=MONTH)))
    reader = LedgerReader(town.store, town.clock)
    reader.load()
    first = history_of(reader)
    statements = Statements(town.store)

    assert history_of(reader) is first
    hear(town, team_a="gpuHours: 3\nperiod: month", team_b=MONTH)
    then = history_of(reader)

    assert then.text("team-a") == "gpuHours: 3\nperiod: month"
    assert then.budget("team-b", T0).budget is first.budget("team-b", T0).budget
    assert [each for each in statements.sent if "FROM entries" in each]
    assert history_of(LedgerReader(town.store, town.clock)) == then


def test_a_worker_of_a_database_that_was_restored_reads_all_entries_again(town: Town, tmp_path: Path) -> None:
    """It has as many entries as before, or more, and not the same."""
    town.begin(("configmaps", budgets(team_a=MONTH)))
    reader = LedgerReader(town.store, town.clock)
    assert history_of(reader).text("team-a") == MONTH
    (tmp_path / "restored").mkdir()
    restored = Town(tmp_path / "restored", town.clock)
    restored.begin(("configmaps", budgets(team_b=MONTH, team_c=MONTH)))

    reader.store = restored.store

    assert history_of(reader).current_keys() == {"team-b", "team-c"}
    restored.close()


def history_of(reader: LedgerReader) -> History:
    with reader.store.reading() as connection:
        return reader.history(connection)
