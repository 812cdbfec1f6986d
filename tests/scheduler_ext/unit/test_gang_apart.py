"""Members with rules about other pods, members or strangers: a plan is one that kube-scheduler can bind, by
an oracle of its rules (`tests.scheduler_ext.neighbours`), and the largest there is."""

import copy
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from scheduler_ext.gangs.capacity import PlanInput
from scheduler_ext.gangs.plan import GangPlan, lack_text, plan
from scheduler_ext.model.standing import UNHEARD
from scheduler_ext.scoring.policy import BINPACK
from scheduler_ext.snapshot.immutable_map import Map
from tests.scheduler_ext import neighbours
from tests.scheduler_ext.gang_worlds import CARDS, GangWorld, member
from tests.scheduler_ext.worlds import in_namespace, node, on, percent, read, rebuilt
from tests.support.profile import examples
from tests.worlds import Json, card

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
MINE: Json = {"labelSelector": {"matchLabels": {"app": "train"}}}


def anti(label: str, kind: str = "podAntiAffinity", **term: Any) -> Json:
    """Required anti-affinity to pods of the same label."""
    return {"affinity": {kind: {neighbours.REQUIRED: [{"topologyKey": label, **(term or MINE)}]}}}


def near(label: str, **term: Any) -> Json:
    """Required affinity to pods of the same label."""
    return anti(label, "podAffinity", **term)


def spread(label: str, skew: int = 1, when: str = "DoNotSchedule", **fields: Any) -> Json:
    """A spread over the values of the label."""
    constraint = {"topologyKey": label, "maxSkew": skew, "whenUnsatisfiable": when, **MINE, **fields}
    return {"topologySpreadConstraints": [constraint]}


def labelled(raw: Json) -> Json:
    raw["metadata"]["labels"] = {**raw["metadata"]["labels"], "app": "train"}
    return raw


def with_port(raw: Json, number: int = 29500, **port: Any) -> Json:
    raw["spec"]["containers"][0]["ports"] = [{"containerPort": number, "hostPort": number, **port}]
    return raw


def stranger(name: str, where: str, namespace: str = "team-a", app: str = "train", **fields: Any) -> Json:
    """A pod without GPUs that runs there."""
    spec = {"nodeName": where, "containers": [{"name": "main"}], **fields}
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": {"app": app}}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}


def leaving(raw: Json) -> Json:
    raw["metadata"]["deletionTimestamp"] = "2026-11-29T08:00:00Z"
    return raw


def ended(raw: Json) -> Json:
    return {**raw, "status": {"phase": "Succeeded"}}


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
    nodes: Sequence[Node], size: int, wanted: Json, others: Sequence[Json] = (), port: Json | None = None
) -> GangPlan:
    """The plan for a gang of alike members with these fields in their specs. ``others``: pods that run."""
    raws = [labelled(member(f"p{at}", size, gates=(), **wanted)) for at in range(size)]
    raws = [with_port(raw, **port) for raw in raws] if port is not None else raws
    snapshot = rebuilt([there.raw() for there in nodes], [*raws, *others])
    snapshot = replace(snapshot, namespaces=Map({"team-a": "", "db": "tier=data"}))
    members = [pod for _, pod in snapshot.pods.items() if not pod.node]
    running = [pod for _, pod in snapshot.pods.items() if pod.node and pod.gang is not None]
    return plan(members, PlanInput(snapshot, UNHEARD, lambda _: BINPACK), running)


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
    assert bool(found.left) == found.is_kept_off == (len(found.members) < 6)


def test_two_pods_with_a_host_port_are_on_two_nodes() -> None:
    assert counts(planned([Node("a", 4), Node("b", 4)], 2, {}, port={})) == {"a": 1, "b": 1}


def running_member(name: str, where: str, at: int, **fields: Any) -> Json:
    return on(labelled(member(name, 2, gates=(), **fields)), where, f"{where}-GPU-{at}")


def test_members_that_run_count_too() -> None:
    there = [running_member("r", "a", 0, **anti(HOST))]
    assert counts(planned([Node("a", 4), Node("b", 4)], 2, anti(HOST), there)) == {"b": 1}
    there = [running_member(f"r{at}", "a", at, **spread(ZONE)) for at in range(2)]
    assert counts(planned(TWO_ZONES, 3, spread(ZONE), there)) == {"a": 1, "b": 2}


AB = [Node("a", 4, "y"), Node("b", 4, "z")]
PORT_IN_USE = "on the nodes with cards for more of them host port 29500/TCP is in use"


@pytest.mark.parametrize(
    ("port", "other", "nodes"),
    [
        ({}, {}, "b"),
        ({}, {"number": 29501}, "ab"),
        ({}, {"protocol": "UDP"}, "ab"),
        ({}, {"hostIP": "10.0.0.1"}, "b"),
        ({"hostIP": "10.0.0.1"}, {"hostIP": "10.0.0.2"}, "ab"),
        ({"hostIP": "10.0.0.1"}, {"hostIP": "0.0.0.0"}, "b"),
        ({"hostIP": "::"}, {"hostIP": "10.0.0.1"}, "ab"),
    ],
)
def test_a_port_of_a_stranger_keeps_members_off_its_node(port: Json, other: Json, nodes: str) -> None:
    there = [with_port(stranger("s", "a", "web", app="x"), **other)]
    found = planned(AB, 2, {}, there, port)

    assert "".join(counts(found)) == nodes
    if not found.left:
        assert nodes == "ab"
    else:
        assert lack_text(found) == f"1 of 2 members fit; {PORT_IN_USE}"


def test_a_port_is_in_use_while_its_pod_ends_and_not_after_it() -> None:
    other = with_port(stranger("s", "a", "web"))

    assert counts(planned(AB, 2, {}, [leaving(other)], {})) == {"b": 1}
    assert counts(planned(AB, 2, {}, [ended(other)], {})) == {"a": 1, "b": 1}


def test_ports_of_sidecars_and_of_the_nodes_network_are_ports_of_the_node() -> None:
    """Those of other init containers are not, for they are over before."""
    ports = [{"containerPort": 29500, "hostPort": 29500}]
    sidecar = {"name": "proxy", "ports": ports, "restartPolicy": "Always"}
    bare = {"containers": [{"name": "main", "ports": [{"containerPort": 29500}]}]}
    init = {"name": "set-up", "ports": ports}

    def nodes_beside(**fields: Any) -> dict[str, int]:
        return counts(planned(AB, 2, {}, [stranger("s", "a", **fields)], {}))

    assert nodes_beside(initContainers=[sidecar]) == {"b": 1}
    assert nodes_beside(initContainers=[init]) == {"a": 1, "b": 1}
    assert nodes_beside(**bare) == {"a": 1, "b": 1}
    assert nodes_beside(**bare, hostNetwork=True) == {"b": 1}


SELECTS_DATA: Json = {"labelSelector": {}, "namespaceSelector": {"matchLabels": {"tier": "data"}}}


@pytest.mark.parametrize(
    ("wanted", "other", "nodes"),
    [
        (anti(HOST), stranger("s", "a"), "b"),
        (anti(HOST), stranger("s", "a", app="other"), "ab"),
        (anti(HOST), stranger("s", "a", "db"), "ab"),
        (anti(HOST), leaving(stranger("s", "a")), "b"),
        (anti(HOST), ended(stranger("s", "a")), "ab"),
        (anti(HOST, **MINE, namespaces=["db"]), stranger("s", "a", "db"), "b"),
        (anti(HOST, **SELECTS_DATA), stranger("s", "a", "db"), "b"),
        (anti(HOST, **SELECTS_DATA), stranger("s", "a"), "ab"),
        (anti(HOST, **MINE, namespaceSelector={}), stranger("s", "a", "web"), "b"),
        (anti(HOST), on(labelled(percent(100, "s")), "a", "a-GPU-0"), "b"),
        ({}, stranger("s", "a", app="x", **anti(HOST)), "b"),
        ({}, stranger("s", "a", "db", **anti(HOST)), "ab"),
        ({}, stranger("s", "a", "db", **anti(HOST, **MINE, namespaces=["team-a"])), "b"),
        ({}, stranger("s", "a", "db", **anti(HOST, **MINE, namespaceSelector={})), "b"),
        ({}, on(percent(100, "s", **anti(HOST)), "a", "a-GPU-0"), "b"),
        (near(HOST), stranger("s", "a"), "a"),
        (near(ZONE), stranger("s", "a"), "a"),
        (near(ZONE), stranger("s", "a", "db"), "a"),  # none is there, so one of its own is the first
        (near(ZONE, labelSelector={"matchLabels": {"app": "x"}}), stranger("s", "b", app="x"), "b"),
        (near(ZONE, labelSelector={"matchLabels": {"app": "x"}}), stranger("s", "b"), ""),
        (spread(ZONE), stranger("s", "a"), "b"),
        (spread(ZONE), leaving(stranger("s", "a")), "ab"),
        (spread(ZONE), stranger("s", "a", "db"), "ab"),
        (spread(ZONE, matchLabelKeys=["role"]), stranger("s", "a"), "b"),
        (spread(ZONE, matchLabelKeys=["app"]), stranger("s", "a", app="x"), "ab"),
        (spread(ZONE, labelSelector={}), stranger("s", "a"), "ab"),
    ],
)
def test_pods_outside_of_the_gang_count(wanted: Json, other: Json, nodes: str) -> None:
    """Two members, each with the card of its node: as few nodes as the rules allow."""
    found = planned([Node("a", 2, "y"), Node("b", 2, "z")], 2, wanted, [other])

    places = "".join(counts(found))
    assert places == nodes or (nodes == "ab" and not found.left), counts(found)


def test_members_that_require_each_other_go_where_all_fit() -> None:
    """Not first to the fullest node, in a zone that is too small for the others."""
    nodes = [Node("a", 1, "x"), Node("b", 2, "y"), Node("c", 2, "y")]

    assert counts(planned(nodes, 3, near(ZONE))) == {"b": 2, "c": 1}


def test_one_that_must_be_near_another_member_is_placed_after_it() -> None:
    raws = [
        labelled(
            member(
                "p", 2, gates=(), share=100, **near(HOST, labelSelector={"matchLabels": {"role": "first"}})
            )
        )
    ]
    raws += [labelled(member("q", 2, gates=(), share=50))]
    raws[1]["metadata"]["labels"]["role"] = "first"
    snapshot = rebuilt([Node("a", 2).raw()], raws)
    found = plan([pod for _, pod in snapshot.pods.items()], PlanInput(snapshot, UNHEARD, lambda _: BINPACK))

    assert counts(found) == {"a": 2}


def test_cards_that_are_kept_for_other_gangs_count_as_theirs() -> None:
    """Two gangs with one host port, planned one after the other."""
    raws = [with_port(member(name, gang=gang, gates=(CARDS,))) for name, gang in ("ag", "bg", "ch", "dh")]
    world = GangWorld({"a": 2, "b": 2, "c": 2, "d": 2}, raws).step().step(1)

    assert sorted(world.planned.values()) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("wanted", "others", "why"),
    [
        (anti(HOST), [], "a pod is near that their anti-affinity over kubernetes.io/hostname selects"),
        (
            {},
            [stranger("s", "a", **anti(ZONE))],
            f"a pod is near whose anti-affinity over {ZONE} selects them",
        ),
        (
            near(ZONE, labelSelector={"matchLabels": {"app": "x"}}),
            [],
            f"no pod is near that their affinity over {ZONE} requires",
        ),
        (
            spread(ZONE, minDomains=2),
            [],
            f"their spread over {ZONE} allows no more, for zone y has 1 pods of it",
        ),
    ],
)
def test_the_sentence_names_the_rule_and_no_card_is_missing(
    wanted: Json, others: list[Json], why: str
) -> None:
    found = planned([Node("a", 4, "y")], 2, wanted, others)

    fit = len(found.members)
    assert lack_text(found) == f"{fit} of 2 members fit; on the nodes with cards for more of them {why}"


def test_where_cards_lack_too_cards_are_missing() -> None:
    found = planned([Node("a", 1)], 2, anti(HOST))
    assert (
        lack_text(found)
        == "1 of 2 members fit; 1 cards missing of 2, the others on 1 node; no node takes more of them"
    )


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
    assert {planned.node for planned in found.members if planned.pod.rules.apart} == {"a", "b"}


def test_a_gang_that_must_be_apart_does_not_start_on_one_node() -> None:
    raws = [labelled(member(name, **anti(HOST))) for name in "pq"]
    world = GangWorld({"a": 2}, raws).step()
    assert (world.planned, world.open) == ({}, "")
    assert "1 of 2 members fit; on the nodes with cards for more of them a pod is near" in world.says("p")

    world.put_node("b", 1)
    assert sorted(world.step(5).planned.values()) == ["a", "b"]


APP = {"key": "app", "operator": "Exists"}


@pytest.mark.parametrize(
    ("fields", "apart", "spreads"),
    [
        ({}, (), ()),
        (anti(HOST), (HOST,), ()),
        (anti(HOST, **MINE, namespaces=["other"]), (HOST,), ()),
        (anti(HOST, labelSelector={"matchExpressions": [APP]}), (HOST,), ()),
        (spread(ZONE, 3, minDomains=2), (), ((ZONE, 3, 2),)),
        (spread(ZONE, when="ScheduleAnyway"), (), ()),
        (anti(HOST) | spread(ZONE), (HOST,), ((ZONE, 1, 0),)),
        (
            {"affinity": {"podAntiAffinity": {}}, "topologySpreadConstraints": [{"maxSkew": "x"}]},
            (),
            (("", 1, 0),),
        ),
        ({"affinity": [], "topologySpreadConstraints": {"a": 1}, "hostNetwork": "yes"}, (), ()),
    ],
)
def test_what_is_read_of_a_pod_is_what_it_asks_of_others(
    fields: Json, apart: tuple[str, ...], spreads: tuple[tuple[str, int, int], ...]
) -> None:
    """Of a single pod what keeps members of gangs off nodes alone."""
    found, single = (
        read(labelled(raw)).rules for raw in (member("p", **fields), percent(100, "s", **fields))
    )

    assert tuple(term.label for term in found.apart) == apart
    assert tuple((rule.term.label, rule.skew, rule.least_values) for rule in found.spread) == spreads
    assert (single.apart, single.near, single.spread) == (found.apart, (), ())


# at random, beside the oracle

NAMESPACES: Json = {"team-a": {"team": "a"}, "web": {"team": "w", "tier": "front"}, "db": {"tier": "data"}}


def by_chance(chance: random.Random, apps: Sequence[str]) -> Json:
    """A term about pods of some app, in some namespaces."""
    app = chance.choice(apps)
    term: Json = {"topologyKey": chance.choice([HOST, ZONE, ZONE])}
    term["labelSelector"] = chance.choice(
        [
            {"matchLabels": {"app": app}},
            {"matchLabels": {"app": app}},
            {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [app]}]},
            {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]},
            {},
        ]
    )
    if chance.random() < 0.3:
        term["namespaces"] = chance.sample(list(NAMESPACES), chance.randint(1, 2))
    if chance.random() < 0.3:
        term["namespaceSelector"] = chance.choice([{}, {"matchLabels": {"tier": "data"}}])
    return term


def rules_by_chance(chance: random.Random, apps: Sequence[str], most: int) -> Json:
    """Fields of a spec."""
    fields: Json = {}
    for _ in range(chance.randint(0, most)):
        kind = chance.choice(["podAffinity", "podAntiAffinity", "podAntiAffinity", "spread", "spread"])
        if kind == "spread":
            about: Json = {"labelSelector": {"matchLabels": {"app": chance.choice(apps)}}}
            about |= chance.choice([{}, {}, {"minDomains": 2}, {"minDomains": 4}])
            about |= chance.choice([{}, {}, {"matchLabelKeys": ["role"]}])
            about |= chance.choice([{}, {}, {"nodeAffinityPolicy": "Ignore"}, {"nodeTaintsPolicy": "Honor"}])
            one = spread(chance.choice([HOST, ZONE]), chance.randint(1, 2), **about)
            fields.setdefault("topologySpreadConstraints", []).extend(one["topologySpreadConstraints"])
        else:
            affinity = fields.setdefault("affinity", {}).setdefault(kind, {})
            affinity.setdefault(neighbours.REQUIRED, []).append(by_chance(chance, apps))
    if chance.random() < 0.2:
        fields["nodeSelector"] = {"pool": "gpu"}
    return fields


def port_by_chance(chance: random.Random, raw: Json, likely: float) -> Json:
    if chance.random() < likely:
        more = chance.choice([{}, {"hostIP": "10.0.0.1"}, {"protocol": "UDP"}])
        return with_port(raw, chance.choice([1, 1, 2]), **more)
    return raw


def others_by_chance(chance: random.Random, nodes: Sequence[Node], apps: Sequence[str]) -> list[Json]:
    """Strangers: pods without GPUs, and single pods with a card."""
    found, left = [], {there.name: there.cards for there in nodes}
    for at in range(chance.randint(0, 7)):
        where, namespace, app = chance.choice(nodes), chance.choice(list(NAMESPACES)), chance.choice(apps)
        fields = {key: value for key, value in rules_by_chance(chance, apps, 1).items() if key == "affinity"}
        raw = stranger(f"s{at}", where.name, namespace, app, **fields)
        if left[where.name] and chance.random() < 0.3:
            left[where.name] -= 1
            single = in_namespace(namespace, percent(100, f"s{at}", **fields))
            single["metadata"]["labels"]["app"] = app
            raw = on(single, where.name, f"{where.name}-GPU-{left[where.name]}")
        raw["metadata"]["labels"]["role"] = chance.choice("ab")
        raw = port_by_chance(chance, raw, 0.3)
        found.append({0: leaving, 1: ended}.get(chance.randrange(8), copy.copy)(raw))
    return found


def most(
    waiting: Sequence[Json], there: list[Json], nodes: Sequence[Json], cards: dict[str, int], best: int = 0
) -> int:
    """How many can be bound, in whatever order, each to whatever node: all is tried."""
    kinds = {repr((raw["spec"], raw["metadata"]["labels"])): raw for raw in waiting}.values()
    for raw in kinds if best < len(waiting) else ():
        rest = [other for other in waiting if other is not raw]
        for node_raw in nodes:
            name = node_raw["metadata"]["name"]
            if cards[name] and fits(raw, node_raw, there, nodes):
                less = {**cards, name: cards[name] - 1}
                best = max(best, 1 + most(rest, [*there, bound_to(raw, name)], nodes, less))
    return best


def bound_to(raw: Json, name: str) -> Json:
    return {**raw, "spec": {**raw["spec"], "nodeName": name}}


def fits(raw: Json, node_raw: Json, there: Sequence[Json], nodes: Sequence[Json]) -> bool:
    wanted, labels = raw["spec"].get("nodeSelector", {}), node_raw["metadata"]["labels"]
    is_admitted = wanted.items() <= labels.items() and not node_raw.get("spec", {}).get("taints")
    return is_admitted and neighbours.accepts(raw, node_raw, there, nodes, NAMESPACES)


def world_by_chance(chance: random.Random, most_nodes: int) -> tuple[list[Node], list[Json]]:
    zones = ["x", "y", "z", ""][: chance.randint(1, 4)]
    nodes = [
        Node(f"n{at}", chance.choice([0, 1, 1, 2, 4]), chance.choice(zones))
        for at in range(chance.randint(1, most_nodes))
    ]
    raws = [there.raw() for there in nodes]
    for raw in raws:
        if chance.random() < 0.7:
            raw["metadata"]["labels"]["pool"] = "gpu"
        if chance.random() < 0.15:
            raw["spec"] = {"taints": [{"key": "k", "value": "", "effect": "NoSchedule"}]}
    return nodes, raws


def check(seed: int, roles: str, size: int, most_nodes: int, most_rules: int) -> tuple[int, int]:
    """The members of the plan, each of which can be bound after those before it; and most that can be."""
    chance = random.Random(seed)
    apps = ["train", "web"]
    nodes, node_raws = world_by_chance(chance, most_nodes)
    templates = {role: (rules_by_chance(chance, apps, most_rules), chance.random() < 0.3) for role in roles}
    raws = []
    for at in range(size):
        role = chance.choice(roles)
        fields, has_port = templates[role]
        raw = labelled(member(f"p{at}", size, gates=(), **fields))
        raw["metadata"]["labels"]["role"] = role
        raws.append(with_port(raw, 1) if has_port else raw)
    others = others_by_chance(chance, nodes, apps)
    snapshot = rebuilt(node_raws, [*raws, *others])
    labels = {name: ",".join(f"{k}={v}" for k, v in pairs.items()) for name, pairs in NAMESPACES.items()}
    snapshot = replace(snapshot, namespaces=Map(labels))
    pods = [pod for uid, pod in snapshot.pods.items() if uid.startswith("uid-p")]
    found = plan(pods, PlanInput(snapshot, UNHEARD, lambda _: BINPACK))

    by_name = {raw["metadata"]["name"]: raw for raw in raws}
    by_node = {raw["metadata"]["name"]: raw for raw in node_raws}
    cards = {node.name: node.cards for node in nodes}
    for other in others:
        if other["status"]["phase"] != "Succeeded" and "bursar.dev/devices" in other["metadata"].get(
            "annotations", {}
        ):
            cards[other["spec"]["nodeName"]] -= 1
    there, left = list(others), dict(cards)
    for placed in found.members:
        raw = by_name[placed.pod.name]
        assert fits(raw, by_node[placed.node], there, node_raws), (seed, placed.pod.name, placed.node)
        there.append(bound_to(raw, placed.node))
        left[placed.node] -= 1
    assert min(left.values()) >= 0
    assert found.is_kept_off <= bool(found.left)
    return len(found.members), most(raws, list(others), node_raws, cards)


@pytest.mark.parametrize("seed", range(examples(150)))
def test_each_plan_can_be_bound_member_by_member_beside_strangers_and_none_is_larger(seed: int) -> None:
    """Of members of one template with one rule, beside what keeps them off."""
    found, possible = check(seed, "a", random.Random(seed).randint(1, 4), 4, 1)

    assert found == possible, seed


@pytest.mark.parametrize("seed", range(examples(150)))
def test_members_of_two_templates_with_several_rules_can_be_bound_too(seed: int) -> None:
    """What they need of each other may make a smaller plan, but not none where all can be placed."""
    found, possible = check(seed, "ab", random.Random(seed).randint(1, 3), 4, 2)

    assert found <= possible
    assert found or not possible, seed
