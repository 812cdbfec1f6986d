"""Fields of a valid entry that do nothing there are reported, so that nothing is ignored silently."""

import pytest

from timekeeper.core.budgets.mistakes import EntryError
from timekeeper.core.budgets.policy import Budget, BudgetSettings, ineffective_fields
from timekeeper.core.budgets.reader import read_entry

LIMIT = "gpuHours: 9\n"
NONE = "gpuHours: unlimited\n"


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (NONE, []),
        (LIMIT + "carryOver: 0.5\nwarnAt: 0.8\n", []),
        (NONE + "carryOver: 0.5\nwarnAt: 0.8\ngroup: g\n", ["carryOver", "warnAt"]),
        (LIMIT + "evictGrace: 1m\nevictRate: 9\novertime: evict\n", ["evictGrace", "evictRate", "overtime"]),
        (LIMIT + "onExhausted: evict\nevictGrace: 1m\nevictRate: 9\n", []),
        (NONE + "reserve: declared\n", ["reserve"]),
        (NONE + "protect: {owners: [Job], cards: 1}\n", ["protect"]),
        (NONE + "reserve: declared\ngroup: g\novertime: evict\n", []),
        (
            LIMIT + "placement: off\nonExhausted: reclaim\nidle: reclaim\npolicy: spread\n",
            ["onExhausted", "idle", "policy"],
        ),
        (LIMIT + "placement: off\nonExhausted: evict\nidle: evict\n", []),
        (LIMIT + "placement: on\nonExhausted: reclaim\nidle: reclaim\npolicy: spread\n", []),
    ],
)
def test_a_field_without_effect_is_named(text: str, fields: list[str]) -> None:
    budget = read_entry("team-a", text)
    assert isinstance(budget, Budget)

    assert [each.partition(":")[0] for each in ineffective_fields(budget)] == fields


@pytest.mark.parametrize(
    ("text", "found"),
    [("placement: off", "off"), ("placement: false", "off"), ("placement: on", "on"), ("", "")],
)
def test_placement_is_on_or_off_as_yaml_writes_them(text: str, found: str) -> None:
    for key, given in (("team-a", LIMIT + text), ("_settings", text or "timeZone: UTC")):
        value = read_entry(key, given)
        assert not isinstance(value, EntryError)
        assert value.placement == (found or ("" if key == "team-a" else "on"))


def test_a_group_has_no_placement_and_another_word_is_refused() -> None:
    grouped, wrong = (
        read_entry("_group.g", LIMIT + "placement: off"),
        read_entry("team-a", "placement: no way"),
    )

    assert isinstance(grouped, EntryError)
    assert isinstance(wrong, EntryError)
    assert "placement: a group's entry cannot set it" in grouped.sentence()
    assert "on, off" in "".join(each.sentence() for each in wrong.each())


def test_the_clusters_placement_decides_where_the_entry_names_none() -> None:
    budget = read_entry("team-a", LIMIT + "onExhausted: reclaim")
    assert isinstance(budget, Budget)

    assert ineffective_fields(budget, "off") == (
        "onExhausted: reclaim acts as deprioritize: where placement is off, Bursar takes no cards for other "
        "pods",
    )


@pytest.mark.parametrize(
    ("devices", "named"),
    [
        ("example.com/npu: NPU, rdma/hca: none, google.com/tpu: TPU v5, new.example/memory: none", []),
        ("nvidia.com/gpu: A100, cpu: Xeon, hugepages-2Mi: none", ["nvidia.com/gpu", "cpu", "hugepages-2Mi"]),
        ("new.example/memory: GB, google.com/tpu: none", ["new.example/memory", "google.com/tpu"]),
        ("nvidia.com/gpu: none, nvidia.com/a100: none", ["nvidia.com/gpu", "nvidia.com/a100"]),
    ],
)
def test_a_resource_in_devices_without_effect_is_named(devices: str, named: list[str]) -> None:
    settings = read_entry("_settings", f"devices: {{{devices}}}")
    assert isinstance(settings, BudgetSettings)

    assert [sentence.split(" ")[1] for sentence in ineffective_fields(settings)] == named
