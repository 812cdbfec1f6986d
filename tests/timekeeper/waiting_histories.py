"""Histories of device claims with pods that wait for them: behind the gate, refused by kube-scheduler, with
claims that others hold or that are not made, bound and deleted, seen or unseen. The API server's history says
what is true of each pod; what the settler reserves and what it records is compared with that."""

import copy
import random
from typing import Any

from tests.timekeeper.claim_histories import Batch, Life
from tests.timekeeper.clocks import iso
from tests.timekeeper.oracle_claims import results
from tests.timekeeper.worlds import Town
from tests.worlds import Json

PODS = "pods"
EACH = 3  # GPUs that a claim of these histories asks for at most
SHORT, IN_USE = "0/3 nodes are available: 3 cannot allocate all claims.", "resourceclaim in use."
UNSEEN = "Deleted while no watch ran; it had no node when it was last seen."
SEEN = "Deleted before it had a node."


class WaitingBatch(Batch):
    """``truth``: by UID the pods as the API server has, or had, them; ``shown``: the same as a watch or a
    list showed them last; ``gone``: UIDs of those that were deleted."""

    def __init__(self, town: Town, chance: random.Random, lives: int, calm: bool) -> None:
        self.truth: dict[str, Json] = {}
        self.shown: dict[str, Json] = {}
        self.gone: set[str] = set()
        self.are_pods_cut = False
        self.checked = 0
        self.kills = 0
        super().__init__(town, chance, lives, calm)

    def _something(self) -> None:
        chance = self.chance.random()
        waiting = sorted(uid for uid, raw in self.truth.items() if uid not in self.gone and not _node(raw))
        if chance < 0.08:
            self._create()
        elif chance < 0.30 and waiting:
            self._go_on_with(self.chance.choice(waiting))
        elif chance < 0.32 and not self.calm:
            self.are_pods_cut = True
        elif chance < 0.34 and self.are_pods_cut:
            self._list_pods()
        else:
            super()._something()

    # -- pods that wait

    def _create(self) -> None:
        its = self.chance.sample(self.lives, 2)
        its = [life for life in its if life.namespace == its[0].namespace]
        name = f"waits-{len(self.truth)}"
        named: list[Json] = [{"name": life.name, "resourceClaimName": life.name} for life in its]
        if self.chance.random() < 0.3:
            named.append({"name": "made", "resourceClaimTemplateName": "it"})
        annotations = {
            "bursar.dev/claims": str(EACH * len(named)),
            "bursar.dev/standing": "IN_BUDGET",
            "bursar.dev/held": "budget",
        }
        metadata: Json = {
            "name": name,
            "namespace": its[0].namespace,
            "uid": f"uid-{name}",
            "creationTimestamp": iso(self.now // 1000 * 1000),
            "labels": {"bursar.dev/governed": "true"},
            "annotations": annotations,
        }
        gates = [{"name": "bursar.dev/budget"}] if self.chance.random() < 0.7 else []
        spec: Json = {"containers": [{"name": "main"}], "resourceClaims": named, "schedulingGates": gates}
        spec["terminationGracePeriodSeconds"] = 30
        self._show(metadata["uid"], {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})

    def _go_on_with(self, uid: str) -> None:
        raw = copy.deepcopy(self.truth[uid])
        chance = self.chance.random()
        if chance < 0.15:
            self._delete_pod(uid)
        elif raw["spec"]["schedulingGates"]:
            raw["spec"]["schedulingGates"] = []
            if chance < 0.4:  # it is bound before anything sees it without the gate
                raw["spec"]["nodeName"] = "n1"
            self._show(uid, raw)
        elif chance < 0.45:
            raw["spec"]["nodeName"] = "n1"
            self._show(uid, raw)
        elif chance < 0.6:
            raw["status"]["resourceClaimStatuses"] = [{"name": "made", "resourceClaimName": f"of-{uid}"}]
            self._show(uid, raw)
        else:
            raw["status"]["conditions"] = [_refused(self.chance.choice((SHORT, IN_USE)), self.now)]
            self._show(uid, raw)

    def _show(self, uid: str, raw: Json) -> None:
        self.truth[uid] = raw
        self.town.hear(PODS, copy.deepcopy(raw), unheard=self.are_pods_cut)
        if not self.are_pods_cut:
            self.shown[uid] = raw

    def _delete_pod(self, uid: str) -> None:
        self.gone.add(uid)
        self.town.hear(PODS, copy.deepcopy(self.truth[uid]), deleted=True, unheard=self.are_pods_cut)

    def _list_pods(self) -> None:
        self.are_pods_cut = False
        self.town.hear_all(PODS)
        self.shown |= {uid: raw for uid, raw in self.truth.items() if uid not in self.gone}

    def _tell_pod(self, raw: Json, gone: bool = False) -> None:
        if self.are_pods_cut:
            self._list_pods()
        super()._tell_pod(raw, gone)

    def _kill(self) -> None:
        super()._kill()
        self.kills += 1
        self.are_pods_cut = False
        self.shown |= {uid: raw for uid, raw in self.truth.items() if uid not in self.gone}

    def settle(self) -> None:
        self._list_pods()
        super().settle()

    # -- the laws

    def tick(self) -> None:
        super().tick()
        for decision in self.town.recorded[self.checked :]:
            self._check_record(decision)
        self.checked = len(self.town.recorded)

    def compare(self) -> None:
        super().compare()
        if not self.are_pods_cut:
            assert self.town.settler.ledger.without_node.rates == self._reserved()

    def _reserved(self) -> dict[str, int]:
        """What the pods without gate and node reserve by namespace, beside what their claims hold."""
        found: dict[str, int] = {}
        by_name = {life.name: life for life in self.lives}
        for uid, raw in self.truth.items():
            if uid in self.gone or _node(raw) or raw["spec"]["schedulingGates"]:
                continue
            named = [by_name.get(claim["name"]) for claim in raw["spec"]["resourceClaims"]]
            held = sum(self._held(life) for life in named if life is not None)
            rate = 1000 * max(0, EACH * len(named) - held)
            if rate:
                namespace = raw["metadata"]["namespace"]
                found[namespace] = found.get(namespace, 0) + rate
        return found

    def _held(self, life: Life) -> int:
        """GPUs that the claim of this name is charged for now."""
        every = [each for uid, each in self.oracle.held.items() if each["metadata"]["name"] == life.name]
        return sum(
            self.oracle.rules.get(result["driver"], False) and not result.get("adminAccess", False)
            for raw in every
            if self.oracle.running(raw["metadata"]["uid"]) is not None
            for result in results(raw)
        )

    def _check_record(self, decision: Any) -> None:
        """Each sentence is true of the pod at its moment, by what the API server had then."""
        about: tuple[Any, ...] = decision, self.truth.get(decision.uid)
        raw, said = self.shown[decision.uid], str(decision.figures["message"])
        if decision.kind == "deleted":
            assert decision.uid in self.gone, about
            assert not _node(raw), about
            assert said == UNSEEN or (said == SEEN and not _node(self.truth[decision.uid])), about
            return
        assert decision.kind == "waiting", about
        assert not _node(raw), about
        assert not raw["spec"]["schedulingGates"], about
        (message,) = [each["message"] for each in raw["status"].get("conditions", [])] or [""]
        unmade = any("resourceClaimTemplateName" in each for each in raw["spec"]["resourceClaims"])
        if decision.reason == "WaitsForDevices":
            assert message == SHORT, about
        elif unmade and "resourceClaimStatuses" not in raw["status"]:
            assert "none is made from ResourceClaimTemplate it" in said, about
        else:
            assert said.endswith(f"kube-scheduler says: {IN_USE}" if message else "not tried it yet."), about
            assert message != SHORT, about


def _node(raw: Json) -> str:
    return str(raw["spec"].get("nodeName") or "")


def _refused(message: str, now: int) -> Json:
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return said | {"lastTransitionTime": iso(now // 1000 * 1000)}
