"""Random histories of device claims side by side in one town: allocated, shared, freed, deleted in use;
watches with gaps, a settler that is killed, slices that change. The oracle (`oracle_claims`) receives the
same."""

import copy
import random
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count, pairwise
from typing import Any

from tests.timekeeper.claims import allocated, device_claim, device_slice
from tests.timekeeper.clocks import iso
from tests.timekeeper.oracle_claims import Charge, Claims
from tests.timekeeper.worlds import HOUR, MINUTE, READ, SECOND, Town, budgets, gpu_pod, node
from tests.worlds import Json
from timekeeper.edge.reflector import ObjectChanged
from timekeeper.settler.cluster.cluster_state import WatchUpdate

CLAIMS, SLICES, PODS = "resourceclaims", "resourceslices", "pods"
EXAMPLE, ODD, NIC, TPU = "gpu.example.com", "odd.example.com", "nic.example.com", "tpu.example.com"
TEAMS = ("team-a", "team-b")
MAX_GRACE = 600 * SECOND
SETTINGS = (
    "weights: {H100: 2.5}\nsettleAfter: 10m\n"
    "drivers: {nic.example.com: {gpus: none}, tpu.example.com: {units: capacity.tpus}}"
)
SPANS = (1, 80, 400, SECOND, 3 * SECOND, 7 * SECOND, 40 * SECOND, 15 * MINUTE, 2 * HOUR)


def slices() -> dict[str, Json]:
    """What drivers publish at first, by the name of the slice; the pool ``wide`` has two."""
    capacity = {"memory": {"value": "80Gi"}, "compute": {"value": "100"}}
    parts = device_slice("half", "quarter", node="parts", capacity=capacity)
    parts["spec"]["sharedCounters"] = [{"name": "s", "counters": {"memory": {"value": "80Gi"}}}]
    for device, memory in zip(parts["spec"]["devices"], ("40Gi", "20Gi"), strict=True):
        device["consumesCounters"] = [{"counterSet": "s", "counters": {"memory": {"value": memory}}}]
    tpus = device_slice("chip", "node", "pod", node="tpus", driver=TPU)
    for device, chips in zip(tpus["spec"]["devices"], ("1", "4", "16"), strict=True):
        device["capacity"]["tpus"] = {"value": chips}
    wide = [device_slice("w0", node="wide"), device_slice("w1", node="wide", model="H100")]
    for number, body in enumerate(wide):
        body["metadata"]["name"] = f"wide-{number}"
        body["spec"]["pool"]["resourceSliceCount"] = 2
    every = (
        device_slice("a", "b", node="plain"),
        device_slice("c", node="better", model="H100"),
        device_slice("d", node="shared", allowMultipleAllocations=True, capacity=capacity),
        parts,
        device_slice("e", node="odd", driver=ODD),
        device_slice("f", node="nic", driver=NIC),
        tpus,
        *wide,
    )
    return {each["metadata"]["name"]: each for each in every}


DEVICES = (
    *(("plain", name, EXAMPLE) for name in ("a", "b", "absent")),
    ("better", "c", EXAMPLE),
    *(("shared", "d", EXAMPLE),) * 3,
    *(("parts", name, EXAMPLE) for name in ("half", "quarter")),
    ("odd", "e", ODD),
    *(("tpus", name, TPU) for name in ("chip", "node", "pod")),
    *(("wide", name, EXAMPLE) for name in ("w0", "w1")),
    ("nic", "f", NIC),
)


@dataclass
class Life:
    """A claim as it truly is. ``held``: its allocations: from when until when, and whether their own time is
    told and right."""

    namespace: str
    name: str
    number: int = 0
    devices: list[Json] = field(default_factory=list)
    stamp: int | None = None
    users: list[str] = field(default_factory=list)
    there: bool = False
    held: list[list[Any]] = field(default_factory=list)

    @property
    def uid(self) -> str:
        return f"claim-{self.name}-{self.number}"

    def raw(self) -> Json:
        body = device_claim(self.name, *self.devices, namespace=self.namespace, pods=tuple(self.users))
        body["metadata"]["uid"] = self.uid
        if self.devices and self.stamp is not None:
            body["status"]["allocation"]["allocationTimestamp"] = iso(self.stamp)
        return body


class Batch:
    """Some claims in one town, for so many steps. ``calm``: no gap, no death, no forged time."""

    def __init__(self, town: Town, chance: random.Random, lives: int, calm: bool) -> None:
        self.town, self.chance, self.calm = town, chance, calm
        self.lives = [Life(chance.choice(TEAMS), f"c{number}") for number in range(lives)]
        self.pods: dict[str, Json] = {}
        self.cut: list[tuple[Json, bool]] | None = None  # what a watch that is cut did not deliver
        rules = {EXAMPLE: True, NIC: False, TPU: True}
        published, units = copy.deepcopy(slices()), {TPU: "tpus"}
        self.oracle = Claims(rules, {"H100": Fraction(5, 2)}, MAX_GRACE, published, units)
        self.generations: dict[str, int] = {}
        kubelet = node() | {"status": {"nodeInfo": {"kubeletVersion": "v1.37.2"}}}
        objects = [(SLICES, piece) for piece in slices().values()] + [("nodes", kubelet)]
        town.begin(*objects, ("configmaps", budgets("bursar-settings", _settings=SETTINGS)))
        town.hear_all(CLAIMS)
        self.oracle.lists([], town.clock())
        self.tick()

    @property
    def now(self) -> int:
        return self.town.clock()

    def tick(self) -> None:
        assert self.town.tick()
        self.oracle.tick(self.now)

    def live(self, steps: int) -> None:
        """Something happens, again and again; and each time the ledger is compared."""
        for _ in range(steps):
            if self.chance.random() < 0.6:
                self.town.clock.turn(self.chance.choice(SPANS))
            self._something()
            if self.chance.random() < 0.7:
                self.tick()
                self.compare()

    def _something(self) -> None:
        chance = self.chance.random()
        if not self.calm and chance < 0.12:
            self.chance.choice((self._cut, self._go_on, self._list_again, self._kill, self._stop))()
        elif chance < 0.16:
            self._quiet()
        elif chance < 0.19:
            self._change_a_slice()
        elif chance < 0.30 and self.pods:
            self._change_a_pod()
        else:
            self._change_a_claim(self.chance.choice(self.lives))

    # -- claims

    def _change_a_claim(self, life: Life) -> None:
        if not life.there:
            life.there, life.number = True, life.number + 1
            self._tell(life)
        elif not life.devices:
            self._allocate(life) if self.chance.random() < 0.85 else self._delete(life)
        else:
            acts = (self._release, self._reserve, self._reserve, self._anew, self._delete)
            self.chance.choice(acts)(life)

    def _allocate(self, life: Life, same: list[Json] | None = None) -> None:
        life.devices = same or [self._device() for _ in range(self.chance.choice((1, 1, 1, 2, 3)))]
        kind = self.chance.random()
        life.stamp = self.now // 1000 * 1000
        if kind < 0.1:
            life.stamp = None
        elif kind < 0.15 and not self.calm:
            life.stamp += self.chance.choice((-3 * HOUR, HOUR))
        life.users = [self._pod(life) for _ in range(self.chance.choice((0, 1, 1, 2)))]
        life.held.append([self.now, None])
        self._tell(life)

    def _device(self) -> Json:
        pool, name, driver = self.chance.choice(DEVICES)
        more: Json = {"adminAccess": True} if self.chance.random() < 0.08 else {}
        if pool == "shared":
            gib, compute = (self.chance.choice((0, self.chance.randint(0, most))) for most in (80, 100))
            took = {"memory": f"{gib}Gi", "compute": str(compute)}
            more |= {"shareID": f"s{self.chance.randrange(10**9)}", "consumedCapacity": took}
        return allocated(name, pool=pool, driver=driver, **more)

    def _release(self, life: Life) -> None:
        life.devices, life.users = [], []
        life.held[-1][1] = self.now
        self._tell(life)

    def _anew(self, life: Life) -> None:
        devices = life.devices if self.chance.random() < 0.6 else None
        self._release(life)
        if self.chance.random() < 0.5:
            self.town.clock.turn(self.chance.choice(SPANS[:4]))
        self._allocate(life, devices)

    def _reserve(self, life: Life) -> None:
        life.users = [uid for uid in life.users if self.chance.random() < 0.6]
        life.users += [self._pod(life)] if self.chance.random() < 0.6 else []
        self._tell(life)

    def _delete(self, life: Life) -> None:
        """If it holds devices, somebody has removed its finalizer."""
        raw = life.raw()
        if life.devices:
            life.held[-1][1] = self.now
        life.there, life.devices, life.users = False, [], []
        self._tell(life, raw)

    def _tell(self, life: Life, gone: Json | None = None) -> None:
        raw = gone or life.raw()
        self.town.hear(CLAIMS, raw, deleted=gone is not None, unheard=True)
        if self.cut is not None:
            self.cut.append((raw, gone is not None))
        else:
            self._deliver(raw, gone is not None)

    def _deliver(self, raw: Json, gone: bool) -> None:
        item = READ[CLAIMS](raw)
        assert item is not None
        self.town.settler.apply(WatchUpdate(CLAIMS, self.now, ObjectChanged(item, gone)))
        self.oracle.sees(copy.deepcopy(raw), gone, self.now)

    # -- pods

    def _pod(self, life: Life) -> str:
        """A pod that uses the claim; one in four is not bound."""
        name = next(
            name for number in count() if (name := f"{life.name}-{number}") and f"uid-{name}" not in self.pods
        )  # perhaps that of one that is gone
        is_bound = self.chance.random() < 0.75
        grace_s = self.chance.choice((0, 30, 900))
        raw = gpu_pod(
            name,
            namespace=life.namespace,
            node="n1" if is_bound else "",
            started_ms=self.now if is_bound else None,
            created_ms=self.now,
            grace_s=grace_s,
        )
        raw["metadata"]["annotations"] = {}
        raw["metadata"].pop("labels", None)
        raw["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": life.name}]
        raw["spec"]["containers"][0]["resources"] = {}
        self.pods[raw["metadata"]["uid"]] = raw
        self._tell_pod(raw)
        return str(raw["metadata"]["uid"])

    def _change_a_pod(self) -> None:
        """It ends, or is removed, by force if it had not ended."""
        uid = self.chance.choice(sorted(self.pods))
        raw = self.pods[uid]
        is_running = raw["status"]["phase"] == "Running"
        if is_running and self.chance.random() < 0.6:
            (status,) = raw["status"]["containerStatuses"]
            began = status["state"]["running"]["startedAt"]
            ended = {"exitCode": 0, "startedAt": began, "finishedAt": iso(self.now // 1000 * 1000)}
            status["state"] = {"terminated": ended}
            raw["status"]["phase"] = "Succeeded"
            self._tell_pod(raw)
            return
        del self.pods[uid]
        self._tell_pod(raw, gone=True)

    def _tell_pod(self, raw: Json, gone: bool = False) -> None:
        self.town.hear(PODS, copy.deepcopy(raw), deleted=gone)
        self.oracle.sees_pod(copy.deepcopy(raw), gone, self.now)

    # -- watches, slices and the settler

    def _quiet(self) -> None:
        if self.cut is None:
            self.town.quiet(CLAIMS)
            self.oracle.hears(self.now)
        if self.chance.random() < 0.7:
            self.town.node_heard()
            self.oracle.renews(self.now)

    def _cut(self) -> None:
        self.cut = self.cut or []

    def _go_on(self) -> None:
        missed, self.cut = self.cut or [], None
        for raw, gone in missed:
            self._deliver(raw, gone)

    def _list_again(self) -> None:
        self.cut = None
        self.town.hear_all(CLAIMS)
        self.oracle.lists(copy.deepcopy(list(self.town.objects[CLAIMS].values())), self.now)

    def _kill(self) -> None:
        self.town.start_anew()
        self.oracle.restarts()
        self.town.list_all()
        if not self.town.objects[CLAIMS]:
            self.town.hear_all(CLAIMS)
        self.oracle.lists_pods(copy.deepcopy(list(self.town.objects[PODS].values())))
        self.oracle.lists(copy.deepcopy(list(self.town.objects[CLAIMS].values())), self.now)
        self.cut = None

    def _stop(self) -> None:
        """In order, as in a rolling update: the settler looks at all claims once more, and writes that."""
        self._list_again()
        self.tick()
        self._kill()

    def _change_a_slice(self) -> None:
        """Another model, or other names, or it goes, or comes again. A pool of two slices is not whole in
        between."""
        name, body = self.chance.choice(sorted(slices().items()))
        pool, now = body["spec"]["pool"], self.oracle.slices.get(name)
        is_alone = pool["resourceSliceCount"] == 1
        if now is not None and is_alone and self.chance.random() < 0.3:
            self.oracle.publishes(now, gone=True)
            self.town.hear(SLICES, now, deleted=True)
            return
        newest = self.generations.get(pool["name"], 1)
        is_newest = now is not None and now["spec"]["pool"]["generation"] == newest
        is_renamed = self.chance.random() < 0.3
        pool["generation"] = newest + (
            is_newest if is_renamed or not is_alone else self.chance.random() < 0.5
        )
        self.generations[pool["name"]] = pool["generation"]
        for device in body["spec"]["devices"]:
            device["name"] += "-new" if is_renamed else ""
            device["attributes"]["model"]["string"] = self.chance.choice(("A100", "H100"))
        self.oracle.publishes(copy.deepcopy(body))
        self.town.hear(SLICES, body)

    # -- the comparison

    def compare(self) -> None:
        """The sessions are those of the oracle, to the millisecond."""
        answer = self.town.get("/v1/sessions?limit=10000").get_json()["sessions"]
        found = sorted(
            (each["uid"].partition(":claim:")[0], each["bound"], each["ended"] or 0, each["rateMilli"])
            for each in answer
            if each["kind"] == "claim"
        )
        known = ((e.claim, e.begin, 0 if e.until else e.end or 0, e.rate) for e in self.oracle.charges)
        assert found == sorted(known)

    def settle(self) -> None:
        """All that holds is released, and what the ledger charges in all is what the oracle says."""
        self._list_again()
        for life in self.lives:
            if life.devices:
                self._release(life)
        for uid in sorted(self.pods):
            self._tell_pod(self.pods.pop(uid), gone=True)
        for _ in range(3):
            self.town.clock.turn(20 * MINUTE)
            self._quiet()
            self.tick()
        self.compare()
        assert all(each.end is not None for each in self.oracle.charges)
        for team in TEAMS:
            mine = {life.name for life in self.lives if life.namespace == team}
            owed = sum(
                each.rate * (_end(each) - each.begin) for each in self.oracle.charges if _of(each, mine)
            )
            assert self.town.charged(team) == owed
        self._check_that_nothing_is_charged_twice()
        if self.calm:
            self._check_the_truth()

    def _check_that_nothing_is_charged_twice(self) -> None:
        """The allocations of one claim follow each other."""
        for uid in {each.claim for each in self.oracle.charges}:
            mine = sorted((e.begin, e.end or 0) for e in self.oracle.charges if e.claim == uid)
            assert all(first[1] <= later[0] for first, later in pairwise(mine)), (uid, mine)

    def _check_the_truth(self) -> None:
        """Where nothing was missed, each hold of GPUs is charged from its second to its end; a claim deleted
        in use is charged longer."""
        for life in self.lives:
            for charge in self.oracle.charges:
                if charge.claim.rpartition("-")[0] == f"claim-{life.name}":
                    assert any(_is_for(charge, *hold) for hold in life.held), (charge, life.held)


def _is_for(charge: Charge, began: int, ended: int) -> bool:
    """Whether that is what it is charged for."""
    is_begin = began - 1_000 < charge.begin <= began
    is_longer = charge.lost or charge.until
    return is_begin and (_end(charge) >= ended if is_longer else _end(charge) == ended)


def _end(charge: Charge) -> int:
    return charge.until or charge.end or 0


def _of(charge: Charge, names: set[str]) -> bool:
    return charge.claim.removeprefix("claim-").rpartition("-")[0] in names
