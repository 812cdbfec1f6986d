"""``python -m webhook audit --use``: what running pods hold, by dialect, and what that would cost."""

import json
from collections.abc import Mapping
from datetime import date
from types import MappingProxyType

from tests.webhook.unit.test_audit import running
from tests.webhook.worlds import half
from tests.worlds import Json, container, limits_of, pod
from timekeeper.core.budgets.policy import Budget, BudgetSettings
from timekeeper.core.names import Mode
from timekeeper.core.rating.nodes import NodeCards, cards_of_node
from timekeeper.core.request.host import HostAmount
from timekeeper.core.values import Card
from webhook.audit import use
from webhook.audit.findings import Metering

T4 = (Card("GPU-0", 0, "Tesla T4", 16_000), Card("GPU-1", 1, "Tesla T4", 16_000))
NODES = {"n1": use.AuditedNode(NodeCards(T4), HostAmount(64_000, 1 << 38))}
NOW_MS = 1_795_168_800_000  # 2026-11-20T10:00:00Z
WEIGHED = BudgetSettings(weights=(("T4", 500),), price="2", currency="EUR")


def of(namespace: str, *containers: Json, node: str = "n1", phase: str = "Running") -> Json:
    """A bound pod."""
    raw = pod(*containers)
    raw["metadata"]["namespace"] = namespace
    return running(raw, node, phase)


def figures(
    pods: list[Json], settings: BudgetSettings = WEIGHED, budgets: Mapping[str, Budget] = MappingProxyType({})
) -> list[tuple[object, ...]]:
    """Each namespace's dialects with pods, milli-GPU and cost."""
    found = use.of_pods(pods, NODES, settings, budgets, NOW_MS)
    return [(each.namespace, each.dialect, each.pods, each.rate_milli, str(each.cost)) for each in found]


def test_each_namespace_has_a_line_for_each_dialect_that_its_bound_pods_use() -> None:
    waiting = pod(half())
    ended = of("a", half(), phase="Succeeded")
    web = of("a", {"name": "web", "image": "x"})
    whole = limits_of("main", nvidia_com__gpu="2")
    pods = [of("a", half()), of("a", half()), of("b", whole), of("b", half()), waiting, ended, web]

    # half a T4 of weight 0.5 is 250 milli-GPU; 0.5 GPUs x 730 h x 2 EUR = 730 EUR
    assert figures(pods) == [
        ("a", "bursar", 2, 500, "730.00"),
        ("b", "bursar", 1, 250, "365.00"),
        ("b", "nvidia", 1, 1000, "1460.00"),
    ]


def test_a_price_is_the_namespaces_else_the_defaults_else_the_clusters() -> None:
    pods = [of("own", half()), of("usual", half())]
    budgets = {"own": Budget(None, price="4"), "_defaults": Budget(None, price="1")}

    assert [each[-1] for each in figures(pods, budgets=budgets)] == ["730.00", "182.50"]
    assert [each[-1] for each in figures(pods, BudgetSettings())] == ["None", "None"]


def test_a_slice_of_a_cards_time_counts_as_its_part() -> None:
    """Four of one card: 0.25 GPUs x 0.5 x 730 h x 2 EUR."""
    labelled: Json = {
        "metadata": {"name": "n1", "labels": {"nvidia.com/gpu.replicas": "4"}},
        "status": {"allocatable": {"nvidia.com/gpu": "4"}, "capacity": {"nvidia.com/gpu": "4"}},
    }
    nodes = {"n1": use.AuditedNode(cards_of_node(labelled, T4[:1]))}
    pods = [of("a", limits_of("main", nvidia_com__gpu="1"))]

    (found,) = use.of_pods(pods, nodes, WEIGHED, {}, NOW_MS)

    assert (found.rate_milli, str(found.cost)) == (125, "182.50")


def test_memory_alone_counts_by_the_cards_of_its_node() -> None:
    memory = container(gpu_memory="4000")

    assert figures([of("a", memory)]) == [("a", "bursar", 1, 125, "182.50")]
    assert figures([of("a", memory, node="gone")]) == [("a", "bursar", 1, 1000, "1460.00")]


def test_constraints_that_another_scheduler_does_not_read_make_nothing_cheaper() -> None:
    raw = of("a", half())
    raw["metadata"]["annotations"] = {"bursar.dev/gpu-models": "K80", "bursar.dev/min-gpu-memory": "99999"}
    cheap = BudgetSettings(weights=(("T4", 4000),))

    assert figures([raw], cheap) == [("a", "bursar", 1, 2000, "None")]


def test_a_request_that_cannot_be_read_is_shown_and_costs_nothing() -> None:
    unknown = limits_of("main", amd_com__gpu="1")

    assert figures([of("a", unknown), of("a", container(gpu_percent="150"))]) == [
        ("a", "unreadable", 2, 0, "0.00")
    ]


def test_a_later_price_counts_from_its_day_on() -> None:
    for day, cost in ((20, "730.00"), (21, "182.50")):
        later = ((date(2026, 11, day), "4"),)
        budgets = {"a": Budget(1, price="1", later_prices=later)}
        assert figures([of("a", half())], budgets=budgets)[0][-1] == cost


def test_people_read_a_table_and_programs_items() -> None:
    found = use.of_pods([of("a", half())], NODES, WEIGHED, {}, NOW_MS)

    assert list(use.as_text(found)) == [
        "NAMESPACE  DIALECT  PODS  GPUS  GPU-HOURS/MONTH  COST/MONTH",
        "a          bursar      1  0.25            182.5  365.00 EUR",
        "all                    1  0.25            182.5  365.00 EUR",
    ]
    assert list(use.as_text(()))[1:] == ["all                    0     0                0"]
    assert json.loads(use.as_json(found)) == {
        "items": [
            {
                "namespace": "a",
                "dialect": "bursar",
                "pods": 1,
                "gpus": "0.25",
                "gpuHoursPerMonth": "182.5",
                "costPerMonth": "365.00",
                "currency": "EUR",
            }
        ]
    }


def test_pods_of_metered_namespaces_count_as_the_ledger_reads_them() -> None:
    """A share that no admission would take is charged as a card, and an AMD card as a device."""
    broken, amd = of("a", container(gpu_percent="150")), of("a", limits_of("main", amd_com__gpu="2"))

    def dialects(mode: Mode) -> list[tuple[str, int, int]]:
        found = use.of_pods([broken, amd], NODES, BudgetSettings(), {}, NOW_MS, lambda _: Metering(mode))
        return [(row.dialect, row.pods, row.rate_milli) for row in found]

    assert dialects("enforce") == [("unreadable", 2, 0)]
    assert dialects("meter") == dialects("observe") == [("device", 2, 3000)]
