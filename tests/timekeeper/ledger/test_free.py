"""What is free, beside a count of the test's own over cities with shares, whole cards, plugins, MIG and
claims, governed and metered. The count imports nothing of the product's."""

import json
import random
from collections import defaultdict
from typing import Any
from urllib.parse import quote

import pytest

from tests import worlds
from tests.timekeeper.claims import allocated, device_claim, device_slice
from tests.timekeeper.ledger.test_metered import CPX, WHOLE
from tests.timekeeper.ledger.test_reservation_pods import at as bound_at
from tests.timekeeper.ledger.test_reservation_pods import fraction, reservation
from tests.timekeeper.ledger.test_reserved_cards import FREE, reserved
from tests.timekeeper.worlds import (
    MINUTE,
    T0,
    Json,
    Town,
    budgets,
    gpu_pod,
    lease,
    node,
    token,
    user_status,
)
from timekeeper.settler.cards.writer import MOST_VALUES

SIZES = (1, 2, 4, 8)
PRODUCT = "NVIDIA-A100-SXM4-40GB"
WORDS = ("cordoned", "unhealthy", "excluded")


class City:
    """Nodes and pods as the API server has them, and beside them what the test counts to be free."""

    def __init__(self, random: random.Random, has_extender: bool) -> None:
        self.random, self.has_extender = random, has_extender
        self.raws: list[tuple[str, Json]] = []
        self.closed: list[str] = []
        # node -> its labels, and model -> what is free of each card, or the word why it is not given out
        self.counted: dict[str, tuple[Json, dict[str, list[int | str]]]] = {}
        self.vague = 0
        for at in range(12):
            kind = random.choice(("ours", "ours", "mig", "plugin", "claims"))
            getattr(self, f"_{kind}")(f"n{at}", f"p{random.randrange(3)}")

    def _node(self, name: str, pool: str, cards: list[Json], capacity: Json, **annotations: str) -> str:
        """The node; returns why none of its cards is given out."""
        labels = {"pool": pool, "kubernetes.io/hostname": name}
        if any("/mig-" in resource for resource in capacity):
            labels["nvidia.com/gpu.product"] = PRODUCT
        if cards:
            annotations["bursar.dev/inventory"] = worlds.inventory(*cards)
        apart = self.random.choice(("", "", "", "", "cordoned", "unhealthy", "excluded"))
        ready = {"type": "Ready", "status": "False" if apart == "unhealthy" else "True"}
        if apart == "excluded" and self.has_extender:
            self.closed.append(name)
        apart = "" if apart == "excluded" and not self.has_extender else apart
        self.raws.append(("leases", lease(T0, name)))
        self.raws.append(
            (
                "nodes",
                {
                    "metadata": {"name": name, "labels": labels, "annotations": annotations},
                    "spec": {"unschedulable": True} if apart == "cordoned" else {},
                    "status": {"conditions": [ready], "capacity": capacity, "allocatable": capacity},
                },
            )
        )
        return apart

    def _ours(self, name: str, pool: str) -> None:
        model, number = self.random.choice(("A100", "H100")), self.random.choice((1, 2, 4, 8))
        bad, kept = ({at for at in range(number) if self.random.random() < 0.1} for _ in range(2))
        cards = [
            worlds.card(at, model=model, uuid=f"{name}-{at}", healthy=at not in bad) for at in range(number)
        ]
        cordoned = ",".join(f"{name}-{at}" for at in kept)
        apart = self._node(name, pool, cards, {}, **{"bursar.dev/cordoned-cards": cordoned})
        left: list[int | str] = [1000] * number
        for at in range(number):
            for nth in range(self.random.randrange(3)):
                percent = self.random.choice((25, 50, 100))
                if int(left[at]) >= 10 * percent:
                    left[at] = int(left[at]) - 10 * percent
                    self.raws.append(
                        ("pods", shared(f"{name}-{at}-{nth}", name, f"{name}-{at}", at, percent))
                    )
        for at in range(number):
            left[at] = "unhealthy" if at in bad else "cordoned" if at in kept else apart or left[at]
        self.counted[name] = {"pool": pool}, {model: left}

    def _plugin(self, name: str, pool: str) -> None:
        number = self.random.choice((4, 8))
        cards = [worlds.card(at, model="L4", uuid=f"{name}-{at}") for at in range(number)]
        apart, free = self._node(name, pool, cards, {"nvidia.com/gpu": str(number)}), number
        for nth in range(self.random.randrange(4)):
            asked = self.random.choice((1, 2))
            if asked <= free:
                free -= asked
                self.raws.append(("pods", of_plugin(f"{name}-{nth}", name, "nvidia.com/gpu", asked)))
                self.vague += 1
        left = whole(number, free, apart)
        self.counted[name] = {"pool": pool}, {"L4": left}

    def _mig(self, name: str, pool: str) -> None:
        """Two cards, divided into instances of one profile."""
        profile, number = self.random.choice((("1g.5gb", 14), ("2g.10gb", 6), ("3g.20gb", 4)))
        resource, free = f"nvidia.com/mig-{profile}", number
        apart = self._node(name, pool, [], {resource: str(number)})
        for nth in range(self.random.randrange(4)):
            asked = self.random.choice((1, 2))
            if asked <= free:
                free -= asked
                self.raws.append(("pods", of_plugin(f"{name}-{nth}", name, resource, asked)))
        self.counted[name] = {"pool": pool}, {f"{PRODUCT} MIG {profile}": whole(number, free, apart)}

    def _claims(self, name: str, pool: str) -> None:
        names = [f"gpu-{at}" for at in range(4)]
        apart = self._node(name, pool, [], {})
        self.raws.append(("resourceslices", device_slice(*names, node=name, model="B200")))
        held = self.random.sample(names, self.random.randrange(4))
        for device in held:
            given = allocated(device, pool=name)
            self.raws.append(("resourceclaims", device_claim(f"{name}-{device}", given, at_ms=T0)))
        left: list[int | str] = [0 if device in held else 1000 for device in names]
        if apart in ("cordoned", "unhealthy"):
            left = [apart] * 4
        self.counted[name] = {"pool": pool}, {"B200": left}

    def rows(self, pool: str = "") -> list[Json]:
        """What the answer should have, of one pool of nodes."""
        found: dict[str, Json] = {}
        for labels, models in self.counted.values():
            for model, left in models.items() if pool in ("", labels["pool"]) else ():
                row = found.setdefault(model, defaultdict(int))
                row["nodes"] += 1
                row["cards"] += len(left)
                row["whole"] += left.count(1000)
                row["partMilli"] += sum(part for part in left if isinstance(part, int) and part < 1000)
                for word in WORDS:
                    row[word] += left.count(word)
                for size in SIZES:
                    row[f"takes {size}"] += left.count(1000) >= size
        keys = ("nodes", "cards", "whole", "partMilli", *WORDS)
        return [
            {
                "model": model,
                **{key: row[key] for key in keys},
                "takes": {str(size): row[f"takes {size}"] for size in SIZES},
            }
            for model, row in sorted(found.items())
        ]


def whole(number: int, free: int, apart: str) -> list[int | str]:
    return [apart or (1000 if at < free else 0) for at in range(number)]


def shared(name: str, node: str, uuid: str, index: int, percent: int) -> Json:
    """A pod on a part of a card that Bursar gave it."""
    given = {"uuid": uuid, "index": index, "share_milli": 10 * percent, "memory_mib": 160 * percent}
    placed = json.dumps({"version": 1, "containers": {"main": [given]}})
    return gpu_pod(
        name, node=node, percent=percent, started_ms=T0, annotations={"bursar.dev/devices": placed}
    )


def of_plugin(name: str, node: str, resource: str, amount: int) -> Json:
    """A pod to which the node's plugin gave cards, or instances."""
    raw = gpu_pod(name, node=node, started_ms=T0)
    raw["spec"]["containers"] = [worlds.of_resources({resource: str(amount)})]
    del raw["metadata"]["annotations"]["bursar.dev/devices"]
    return raw


def looked(town: Town, *raws: tuple[str, Json], closed: tuple[str, ...] = ()) -> None:
    """The settler has seen these, and what is free."""
    for name in closed:
        post = {"version": 1, "nodes": [{"name": name, "closed": "draining", "cards": []}], "gone": []}
        assert town.post("/v1/cluster", post | {"waiting": None, "term": "a"}).status_code == 200
    town.begin(*raws)
    town.tick()
    town.writer.step()


def answer(town: Town, query: str = "") -> Any:
    return town.get(f"/v1/free?{query}").get_json()


@pytest.mark.parametrize("only_meter", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_what_is_free_is_as_a_city_counts_it(town: Town, seed: int, only_meter: bool) -> None:
    city = City(random.Random(seed), has_extender=not only_meter)
    town.only_meter = only_meter
    town.start_anew()

    looked(town, *city.raws, closed=tuple(city.closed))

    assert answer(town)["models"] == city.rows()
    assert answer(town)["vague"] == city.vague
    for pool in ("p0", "p1", "p2"):
        assert answer(town, f"labelSelector=pool%3D{pool}")["models"] == city.rows(pool)


def test_who_may_read_a_namespace_reads_it_and_it_names_no_pods(town: Town) -> None:
    reader = token("reader")
    town.reviews.tokens[reader] = user_status("reader")
    town.reviews.denied.add(("reader", "get", "sessions", ""))
    looked(town, ("nodes", node()), ("pods", gpu_pod("secret", namespace="team-b", started_ms=T0)))

    assert town.get("/v1/free", reader).status_code == 403
    own = town.get("/v1/free?namespace=team-a", reader)
    assert own.get_json() == answer(town) | {"asOf": T0}
    assert "secret" not in own.text
    assert answer(town)["models"][0]["whole"] == 1


def test_nodes_are_selected_by_labels(town: Town) -> None:
    def labelled(name: str, **labels: str) -> tuple[str, Json]:
        raw = node(name, 1)
        raw["metadata"]["labels"] = {"kubernetes.io/hostname": name, **labels}
        return "nodes", raw

    looked(town, labelled("a", pool="x", zone="1"), labelled("b", pool="y", zone="1"), labelled("c"))

    def number(selector: str) -> int:
        found = answer(town, f"labelSelector={quote(selector)}")["models"]
        return int(found[0]["nodes"]) if found else 0

    asked = ("pool=x", "zone=1", "zone=1,pool=y", "zone=2", "pool=x,zone=2")
    assert [number(selector) for selector in asked] == [1, 2, 1, 0, 0]
    assert number("kubernetes.io/hostname=a") == 0  # it tells single nodes apart
    for wrong in ("=x", "pool", "pool=x,", "a b", "pool=x!", "pool!=x"):
        refused = town.get(f"/v1/free?labelSelector={quote(wrong)}")
        assert (refused.status_code, refused.get_json()["field"]) == (400, "labelSelector"), wrong


def test_labels_with_too_many_values_are_left_out(town: Town) -> None:
    raws = []
    for at in range(MOST_VALUES + 1):
        raw = node(f"n{at}", 1)
        raw["metadata"]["labels"] = {"serial": str(at), "pool": str(at % MOST_VALUES)}
        raws.append(("nodes", raw))

    looked(town, *raws)

    assert answer(town, "labelSelector=serial%3D0")["models"] == []
    assert answer(town, "labelSelector=pool%3D0")["models"][0]["nodes"] == 2


def table(town: Town) -> Any:
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    return town.get("/v1/free", Accept=accept).get_json()


def test_before_a_look_nothing_is_known_and_an_old_one_is_called_so(town: Town) -> None:
    town.tick()
    town.writer.step()
    assert (answer(town)["asOf"], answer(town)["models"]) == (None, [])
    assert table(town)["warnings"] == ["Nothing is known yet: the settler has not looked."]

    looked(town, ("nodes", node()), ("pods", gpu_pod(percent=25, started_ms=T0)))
    said = table(town)
    assert [row["cells"] for row in said["rows"]] == [["A100", 2, 1, "0.75", "1: 1, 2: 0, 4: 0, 8: 0", ""]]
    assert said["warnings"] == []
    town.clock.turn(2 * MINUTE)
    assert table(town)["warnings"] == ["This is old: the settler looked last 2m0s ago."]


def test_all_held_is_said_and_a_pod_that_vanished_holds_its_cards_for_its_grace(town: Town) -> None:
    pods = [gpu_pod(f"p{at}", card=at, started_ms=T0, grace_s=30) for at in range(2)]
    looked(town, ("nodes", node()), *(("pods", raw) for raw in pods))
    assert table(town)["rows"][0]["cells"][2:] == [0, "0", "1: 0, 2: 0, 4: 0, 8: 0", "all held"]

    town.change("pods", pods[0], deleted=True)
    town.writer.step()
    assert answer(town)["models"][0]["whole"] == 0
    town.clock.turn(30_000)
    town.tick()
    town.writer.step()
    assert answer(town)["models"][0]["whole"] == 1


def test_cards_that_nothing_describes_count_by_their_number(town: Town) -> None:
    raw = node()
    raw["metadata"]["annotations"] = {}
    raw["status"] = {"capacity": {"amd.com/gpu": "4"}, "allocatable": {"amd.com/gpu": "4"}}
    town.only_meter = True
    town.start_anew()

    looked(town, ("nodes", raw), ("pods", of_plugin("p", "n1", "amd.com/gpu", 3)))

    (found,) = answer(town)["models"]
    assert (found["model"], found["cards"], found["whole"], answer(town)["vague"]) == ("amd.com/gpu", 4, 1, 1)


def test_partitions_count_by_their_devices_each_resource_for_itself(town: Town) -> None:
    """Of eight devices in mode CPX seven are whole, and of one in mode DPX a half is free."""
    pods = (of_plugin(f"p-{nth}", "cpx", name, 1) for nth, name in enumerate(CPX["status"]["capacity"]))
    town.only_meter = True
    town.start_anew()

    looked(town, ("nodes", CPX), *(("pods", pod) for pod in pods))

    found = {row["model"]: (row["cards"], row["whole"], row["partMilli"]) for row in answer(town)["models"]}
    assert found == {"amd.com/gpu": (8, 7, 875), "amd.com/dpx_nps2": (1, 0, 500)}


def test_a_card_that_kai_divides_is_held_once(town: Town) -> None:
    """By its reservation pod, whatever the pods with fractions hold of it; a whole card beside it is not."""
    town.hear("configmaps", budgets(_settings="mode: meter\nweights: {A100: 2}"))
    fractions = (bound_at(fraction(name, part), T0) for name, part in (("f", "0.25"), ("g", "0.5")))
    looked(town, ("nodes", WHOLE), ("pods", reservation()), *(("pods", pod) for pod in fractions))

    (found,) = answer(town)["models"]
    assert (found["cards"], found["whole"], found["partMilli"], answer(town)["vague"]) == (2, 1, 0, 3)


def test_cards_that_are_reserved_for_a_waiting_pod_are_held(town: Town) -> None:
    town.clock.turn(FREE - town.clock())
    looked(town, ("nodes", node("n1", 2)), ("pods", reserved()))

    (found,) = answer(town)["models"]
    assert (found["cards"], found["whole"]) == (2, 1)


def test_cards_that_are_kept_empty_for_a_gang_are_not_free(town: Town) -> None:
    kept = {"namespace": "team-b", "name": "g", "uid": "drained/n1", "share_milli": 1000, "memory_mib": 0}
    card: Json = {"uuid": "GPU-1", "index": 1, "model": "A100", "memory_mib": 16_000, "healthy": True}
    card |= {"cordoned": False, "used_share_milli": 0, "used_memory_mib": 0, "more_pods": 0}
    card["pods"] = [kept | {"held": "drained"}]
    post = {"version": 1, "nodes": [{"name": "n1", "closed": "", "cards": [card]}], "gone": []}
    assert town.post("/v1/cluster", post | {"waiting": None, "term": "a"}).status_code == 200

    looked(town, ("nodes", node("n1", 2)))

    assert answer(town)["models"][0]["whole"] == 1


def test_a_pod_on_a_card_that_is_gone_from_the_inventory_holds_some_other(town: Town) -> None:
    looked(town, ("nodes", node("n1", 3)), ("pods", gpu_pod(card=2, started_ms=T0)))
    town.change("nodes", node("n1", 2))
    town.writer.step()

    (found,) = answer(town)["models"]
    assert (found["cards"], found["whole"], answer(town)["vague"]) == (2, 1, 1)


def test_shares_of_a_device_and_instances_that_overlap_count_as_far_as_they_fit(town: Town) -> None:
    shared_device = device_slice("gpu-0", node="n1", allowMultipleAllocations=True)
    consumed = {"memory": "20Gi"}
    share = allocated("gpu-0", shareID="s", consumedCapacity=consumed)
    raw = device_slice("g0", "g1", "m0", "m1", "m2", node="n2", driver="gpu.nvidia.com")
    counters = {"slices": {"value": "7"}}
    raw["spec"]["sharedCounters"] = [{"name": f"set{at}", "counters": counters} for at in (0, 1)]
    for at, device in enumerate(raw["spec"]["devices"]):
        is_whole, taken = at < 2, "7" if at < 2 else "3"
        device["consumesCounters"] = [
            {"counterSet": "set1" if at == 1 else "set0", "counters": {"slices": {"value": taken}}}
        ]
        device["attributes"] = {"productName": {"string": "NVIDIA H100"}, "type": {"string": "gpu"}}
        if not is_whole:
            device["attributes"] |= {"type": {"string": "mig"}, "profile": {"string": "3g.40gb"}}
    instance = allocated("m0", pool="n2", driver="gpu.nvidia.com")

    looked(
        town,
        *(("nodes", {"metadata": {"name": name}}) for name in ("n1", "n2")),
        ("resourceslices", shared_device),
        ("resourceslices", raw),
        ("resourceclaims", device_claim("a", share, at_ms=T0)),
        ("resourceclaims", device_claim("b", instance, at_ms=T0)),
    )

    found = {row["model"]: (row["cards"], row["whole"], row["partMilli"]) for row in answer(town)["models"]}
    # of the GPU with instances one is held, one fits beside it, and a third doesn't
    assert found == {"A100": (1, 0, 750), "NVIDIA H100": (2, 1, 0), "NVIDIA H100 MIG 3g.40gb": (2, 1, 0)}


def user(name: str, claim: str, seconds: int) -> tuple[str, Json]:
    """A pod that runs with a claim since T0, and declares so much time; 0: none."""
    raw = gpu_pod(name, started_ms=T0)
    raw["metadata"]["annotations"] = {}
    raw["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": claim}]
    raw["spec"]["containers"][0]["resources"] = {}
    if seconds:
        raw["spec"]["activeDeadlineSeconds"] = seconds
    return "pods", raw


NO_END = "no end is known: of the pods that hold these cards too few have declared time"
AT_LEAST = "unless pods end early: the pods that hold these cards have declared time until then"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ((7_200, 3_600), f"not before 2026-11-20T11:00:00Z, {AT_LEAST}"),
        ((7_200, 0), NO_END),
        ((0, 0), NO_END),
        ((7_200,), ""),
    ],
    ids=["all", "one", "none", "a device is free"],
)
def test_a_claim_and_a_pod_that_wait_for_devices_learn_when_one_may_be_free(
    town: Town, seconds: tuple[int, ...], expected: str
) -> None:
    number = len(seconds)
    claims = [
        ("resourceclaims", device_claim(f"c{at}", allocated(f"gpu-{at}"), at_ms=T0, pods=(f"uid-u{at}",)))
        for at in range(number)
    ]
    users = [user(f"u{at}", f"c{at}", seconds[at]) for at in range(number)]
    slices = "resourceslices", device_slice("gpu-0", "gpu-1")
    looked(town, ("nodes", {"metadata": {"name": "n1"}}), slices, *claims, *users)

    row: Json = {
        "namespace": "team-a",
        "name": "w",
        "uid": "w",
        "state": "not-asked",
        "standing": "IN_BUDGET",
    }
    row |= {"priority": 0, "age_ms": MINUTE, "reason": "", "when": "devices"}
    post: Json = {"version": 1, "nodes": [], "gone": [], "term": "a"}
    assert (
        town.post("/v1/cluster", post | {"waiting": {"total": 1, "pods": [row], "more": {}}}).status_code
        == 200
    )

    assert town.get("/v1/waiting").get_json()["pods"][0]["when"] == expected
    said = town.get("/v1/explain/team-a/claim/new").get_json()["waitsFor"]
    unknown = "no allocation of claim new is known: it is charged once it holds GPUs"
    assert said == [unknown, *([expected] if expected else [])]


def test_findings_are_as_before_and_do_not_name_the_row(town: Town) -> None:
    looked(town, ("nodes", node()))

    assert "free" not in {row["role"] for row in town.get("/v1/findings").get_json()["roles"]}
