"""Members that must be apart from each other: a plan is one that kube-scheduler can bind, by an oracle of its
rules that only counts, and the largest there is."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from scheduler_ext.gangs.plan import NOT_APART, GangPlan, plan
from scheduler_ext.gangs.rooms import PlanInput
from scheduler_ext.model.standing import UNHEARD
from scheduler_ext.scoring.policy import BINPACK
from tests.scheduler_ext.gang_worlds import GangWorld, member
from tests.scheduler_ext.worlds import node, percent, read, rebuilt
from tests.support.profile import examples
from tests.worlds import Json, card

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
MINE = {"labelSelector": {"matchLabels": {"app": "train"}}}


def anti(label: str, **term: Any) -> Json:
    """Required anti-affinity to pods of the same label."""
    required = [{"topologyKey": label, **(term or MINE)}]
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def spread(label: str, skew: int = 1, when: str = "DoNotSchedule", **fields: Any) -> Json:
    """A spread over the values of the label."""
    constraint = {"topologyKey": label, "maxSkew": skew, "whenUnsatisfiable": when, **MINE, **fields}
    return {"topologySpreadConstraints": [constraint]}


def labelled(raw: Json) -> Json:
    raw["metadata"]["labels"] = {**raw["metadata"]["labels"], "app": "train"}
    return raw


def with_port(raw: Json) -> Json:
    raw["spec"]["containers"][0]["ports"] = [{"containerPort": 1, "hostPort": 1}]
    return raw


@dataclass(frozen=True)
class Node:
    """``zone``: "" without the label; without cards it is no node for the gang, and a domain all the same."""

    name: str
    cards: int
    zone: str = ""

    def value(self, label: str) -> str:
        return self.name if label == HOST else self.zone

    def raw(self) -> Json:
        raw = node(self.name, *map(card, range(self.cards or 1)))
        raw["metadata"]["labels"] = {HOST: self.name, **({ZONE: self.zone} if self.zone else {})}
        if not self.cards:
            raw["metadata"]["annotations"], raw["status"] = {}, {"allocatable": {"cpu": "8"}}
        return raw


def planned(
    nodes: Sequence[Node], size: int, *wanted: Json, port: bool = False, beside: str = ""
) -> GangPlan:
    """The plan for a gang of alike members with these fields in their specs. ``beside``: nodes of members
    that run, by their letters."""
    fields = {key: value for each in wanted for key, value in each.items()}
    raws = [labelled(member(f"p{at}", size, gates=(), **fields)) for at in range(size)]
    raws = [with_port(raw) for raw in raws] if port else raws
    snapshot = rebuilt([each.raw() for each in nodes], raws)
    pods = [pod for _, pod in snapshot.pods.items()]
    running = [replace(pods[0], node=name) for name in beside]
    return plan(pods, PlanInput(snapshot, UNHEARD, lambda _: BINPACK), running)


def counts(found: GangPlan) -> dict[str, int]:
    return dict(sorted(Counter(each.node for each in found.members).items()))


TWO_ZONES = [Node("a", 4, "y"), Node("b", 4, "z")]
WITH_CPU = [*TWO_ZONES, Node("c", 0, "x")]


@pytest.mark.parametrize(
    ("nodes", "wanted", "most"),
    [
        ([Node("a", 4), Node("b", 1)], anti(HOST), {"a": 1, "b": 1}),
        ([Node("a", 4, "y"), Node("b", 1, "y"), Node("c", 1)], anti(ZONE), {"b": 1, "c": 1}),
        (TWO_ZONES, spread(ZONE), {"a": 3, "b": 3}),
        ([*TWO_ZONES, Node("c", 1, "x")], spread(ZONE), {"a": 2, "b": 2, "c": 1}),
        ([*TWO_ZONES, Node("c", 1, "x")], spread(ZONE, 2), {"a": 3, "b": 2, "c": 1}),
        (WITH_CPU, spread(ZONE), {"a": 1, "b": 1}),
        (WITH_CPU, spread(ZONE, 2), {"a": 2, "b": 2}),
        ([*TWO_ZONES, Node("c", 4)], spread(ZONE), {"a": 3, "b": 3}),
        ([Node("a", 4), Node("b", 1)], spread(HOST), {"a": 2, "b": 1}),
        (TWO_ZONES, spread(ZONE, when="ScheduleAnyway"), {"a": 4, "b": 2}),
        (TWO_ZONES, spread(ZONE, minDomains=2), {"a": 3, "b": 3}),
        (TWO_ZONES, spread(ZONE, 2, minDomains=3), {"a": 2, "b": 2}),  # as if a third had none
    ],
)
def test_of_six_members_as_many_are_planned_as_may_be_together(
    nodes: list[Node], wanted: Json, most: dict[str, int]
) -> None:
    """A node without cards counts as a value of its label, as kube-scheduler counts it, and one without the
    label takes none of a spread."""
    found = planned(nodes, 6, wanted)

    assert sorted(counts(found).values()) == sorted(most.values())
    assert counts(found).keys() == most.keys()
    assert found.why == ("" if len(found.members) == 6 else NOT_APART)


def test_two_pods_with_a_host_port_are_on_two_nodes() -> None:
    assert counts(planned([Node("a", 4), Node("b", 4)], 2, port=True)) == {"a": 1, "b": 1}


def test_members_that_run_count_too() -> None:
    assert counts(planned([Node("a", 4), Node("b", 4)], 2, anti(HOST), beside="a")) == {"b": 1}
    assert counts(planned(TWO_ZONES, 3, spread(ZONE), beside="aa")) == {"b": 3}


ONLY: Json = {"nodeSelector": {"pool": "gpu"}}
TOLERATES: Json = {"tolerations": [{"key": "k", "operator": "Exists"}]}


@pytest.mark.parametrize(
    ("spec", "policies", "is_tainted", "most"),
    [
        ({}, {}, False, 2),
        (ONLY, {}, False, 6),
        (ONLY, {"nodeAffinityPolicy": "Ignore"}, False, 2),
        ({}, {}, True, 2),
        ({}, {"nodeTaintsPolicy": "Honor"}, True, 6),
        (TOLERATES, {"nodeTaintsPolicy": "Honor"}, True, 2),
        (ONLY, {"nodeAffinityPolicy": "Ignore", "nodeTaintsPolicy": "Honor"}, True, 6),
    ],
)
def test_nodes_that_the_pods_may_not_use_are_no_domains(
    spec: Json, policies: Json, is_tainted: bool, most: int
) -> None:
    """Unless a policy says so for node affinity, or does not say so for taints."""
    raws = [each.raw() for each in WITH_CPU]
    for raw in raws[:2]:
        raw["metadata"]["labels"]["pool"] = "gpu"
    if is_tainted:
        raws[2]["spec"] = {"taints": [{"key": "k", "value": "", "effect": "NoSchedule"}]}
    pods = [labelled(member(f"p{at}", 6, gates=(), **spread(ZONE, **policies), **spec)) for at in range(6)]
    snapshot = rebuilt(raws, pods)

    found = plan([pod for _, pod in snapshot.pods.items()], PlanInput(snapshot, UNHEARD, lambda _: BINPACK))

    assert len(found.members) == most


def test_members_without_such_a_rule_are_placed_as_any_others() -> None:
    """As those of another template of a PyTorchJob."""
    raws = [labelled(member(name, 4, gates=(), **anti(HOST))) for name in "pq"]
    raws += [member(name, 4, gates=()) for name in "rs"]
    snapshot = rebuilt([Node("a", 2).raw(), Node("b", 2).raw()], raws)
    pods = sorted((pod for _, pod in snapshot.pods.items()), key=lambda pod: pod.name)
    found = plan(pods, PlanInput(snapshot, UNHEARD, lambda _: BINPACK))

    assert counts(found) == {"a": 2, "b": 2}
    assert {each.node for each in found.members if each.pod.apart} == {"a", "b"}


def test_a_gang_that_must_be_apart_does_not_start_on_one_node() -> None:
    raws = [labelled(member(name, **anti(HOST))) for name in "pq"]
    world = GangWorld({"a": 2}, raws).step()
    assert (world.planned, world.open) == ({}, "")
    assert f"1 of 2 members fit; 1 cards missing; {NOT_APART}" in world.says("p")

    world.put_node("b", 1)
    assert sorted(world.step(5).planned.values()) == ["a", "b"]


APP = {"key": "app", "operator": "Exists"}


@pytest.mark.parametrize(
    ("fields", "apart"),
    [
        ({}, ()),
        (anti(HOST), ((HOST, 0, 0),)),
        (anti(HOST, **MINE, namespaces=["other"]), ()),
        (anti(HOST, **MINE, namespaces=["other", "team-a"]), ((HOST, 0, 0),)),
        (anti(HOST, **MINE, namespaceSelector={}), ((HOST, 0, 0),)),
        (anti(HOST, labelSelector={"matchExpressions": [APP]}), ((HOST, 0, 0),)),
        (anti(HOST, labelSelector=None), ()),
        (spread(ZONE, 3, minDomains=2), ((ZONE, 3, 2),)),
        (spread(ZONE, when="ScheduleAnyway"), ()),
        (anti(HOST) | spread(ZONE), ((HOST, 0, 0), (ZONE, 1, 0))),
        ({"affinity": {"podAntiAffinity": {}}, "topologySpreadConstraints": [{"maxSkew": "x"}]}, ()),
    ],
)
def test_what_is_read_of_a_pod_is_what_keeps_it_from_pods_of_its_namespace(
    fields: Json, apart: tuple[tuple[str, int, int], ...]
) -> None:
    found = read(labelled(member("p", **fields))).apart

    assert tuple((rule.label, rule.skew, rule.least_values) for rule in found) == apart
    assert read(labelled(percent(100, "single", **fields))).apart == ()


# the oracle: what kube-scheduler accepts, one member after the other; templates with rules about some of them

Rule = tuple[str, str, int]  # "anti" or "spread", the label, and the skew


@dataclass(frozen=True)
class Template:
    """``rules``: each with the role of the pods that it is about, "": all of the gang; and minDomains."""

    role: str
    rules: tuple[tuple[Rule, str, int], ...]

    def raw(self, name: str, size: int) -> Json:
        fields: Json = {"affinity": {"podAntiAffinity": {}}, "topologySpreadConstraints": []}
        required = fields["affinity"]["podAntiAffinity"].setdefault(
            "requiredDuringSchedulingIgnoredDuringExecution", []
        )
        for (kind, label, skew), role, least in self.rules:
            about: Json = {"labelSelector": {"matchLabels": {"role": role} if role else {"app": "train"}}}
            if kind == "anti":
                required.append({"topologyKey": label, **about})
            else:
                about |= {"minDomains": least} if least else {}
                fields["topologySpreadConstraints"] += spread(label, skew, **about)[
                    "topologySpreadConstraints"
                ]
        raw = labelled(member(name, size, gates=(), **fields))
        raw["metadata"]["labels"]["role"] = self.role
        return raw


def accepts(
    node: Node, template: Template, placed: Sequence[tuple[Template, Node]], nodes: Sequence[Node]
) -> bool:
    """Whether kube-scheduler would bind one of the template there, beside these."""
    for (kind, label, skew), role, least in template.rules:
        about = [there.value(label) for other, there in placed if role in ("", other.role)]
        here, values = about.count(node.value(label)), {each.value(label) for each in nodes} - {""}
        if kind == "anti" and node.value(label) and here:
            return False
        fewest = 0 if len(values) < least else min((about.count(value) for value in values), default=0)
        if kind == "spread" and not node.value(label):
            return False
        if kind == "spread" and here + (role in ("", template.role)) - fewest > skew:
            return False
    return not any(
        kind == "anti" and role in ("", template.role) and there.value(label) == node.value(label) != ""
        for other, there in placed
        for (kind, label, _), role, _ in other.rules
    )


def most(nodes: Sequence[Node], size: int, template: Template) -> int:
    """How many are taken, one after the other: what one takes never keeps another from what it could have,
    so their order is of no matter."""
    placed: list[tuple[Template, Node]] = []
    while len(placed) < size:
        taken = Counter(there.name for _, there in placed)
        able = [
            each for each in nodes if taken[each.name] < each.cards and accepts(each, template, placed, nodes)
        ]
        if not able:
            break
        placed.append((template, able[0]))
    return len(placed)


@pytest.mark.parametrize("seed", range(examples(180)))
def test_each_plan_can_be_bound_member_by_member_and_none_is_larger(seed: int) -> None:
    chance = random.Random(seed)
    zones = ["x", "y", "z", ""][: chance.randint(1, 4)]
    counts = [chance.choice([0, 1, 1, 2, 4]) for _ in range(chance.randint(1, 7))]
    nodes = [Node(f"n{at}", count, chance.choice(zones)) for at, count in enumerate(counts)]
    by_name, roles = {each.name: each for each in nodes}, chance.choice([["a"], ["a", "b"]])

    def rule() -> tuple[Rule, str, int]:
        kind, label = chance.choice(["anti", "spread"]), chance.choice([HOST, ZONE])
        about, least = chance.choice(["", *roles]), chance.choice([0, 0, 2, 4])
        return (kind, label, chance.randint(1, 2)), about, least

    templates = [Template(role, tuple(rule() for _ in range(chance.randint(0, 2)))) for role in roles]
    size = chance.randint(1, 8)
    of = {f"p{at}": chance.choice(templates) for at in range(size)}
    raws = [template.raw(name, size) for name, template in of.items()]
    snapshot = rebuilt([each.raw() for each in nodes], raws)
    found = plan([pod for _, pod in snapshot.pods.items()], PlanInput(snapshot, UNHEARD, lambda _: BINPACK))

    placed: list[tuple[Template, Node]] = []
    for each in found.members:
        template, there = of[each.pod.name], by_name[each.node]
        assert accepts(there, template, placed, nodes), (seed, each.pod.name, there, templates)
        placed.append((template, there))
    counted = Counter(there.name for _, there in placed)
    assert all(counted[each.name] <= each.cards for each in nodes)
    if len(roles) == 1 and len(templates[0].rules) < 2:
        assert len(placed) == most(nodes, size, templates[0]), (seed, nodes, templates)
