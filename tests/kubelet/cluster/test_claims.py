"""Claims in every form on a real kubelet with a real DRA driver, from creation to release: pods start, see
their devices and no others, and the devices are free afterwards."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import yaml

from tests.kubelet import claims, recorded
from tests.kubelet.claims import CLAIMS, PODS, TEMPLATES, Seen, claim_spec, claiming_pod, wanted
from tests.kubelet.drivers import dra_drivers
from tests.kubelet.worlds import Json, World, milliseconds, state

WHOLE, SHARED, PARTS = "gpu.example.com", "shared.example.com", "parts.example.com"
CLASSES = {WHOLE: "example.com/gpu", SHARED: "", PARTS: ""}
# The whole devices 8 and 9 are those of the claim on all; first fit gives the others away before.
FLAGS = {
    WHOLE: ("--num-devices=10",),
    SHARED: ("--num-devices=1", "--gpu-allow-multiple-allocations"),
    PARTS: ("--num-devices=1", "--gpu-partitions=2"),
}
LONG_S, SHORT_S = 6, 3
EXTENDED = "resource.kubernetes.io/extended-resource-claim"

DIRECT = {
    "shared": claim_spec({"name": "gpu", **wanted(WHOLE)}),
    "all": claim_spec({"name": "gpu", **wanted(WHOLE, "has.index >= 8", allocationMode="All")}),
}
PART = wanted(PARTS, "has.?partition.hasValue()")
TEMPLATE_SPECS = {
    "one": claim_spec({"name": "gpu", **wanted(WHOLE)}),
    "two": claim_spec({"name": "gpu", **wanted(WHOLE, count=2)}),
    "first": claim_spec(
        {
            "name": "gpu",
            "firstAvailable": [
                {"name": "bigger", **wanted(WHOLE, "has.index >= 1000")},
                {"name": "any", **wanted(WHOLE)},
            ],
        }
    ),
    "admin": claim_spec({"name": "gpu", **wanted(WHOLE, "has.index == 0", adminAccess=True)}),
    "third": claim_spec(
        {"name": "gpu", **wanted(SHARED, capacity={"requests": {"memory": "20Gi", "compute": "33"}})}
    ),
    "half": claim_spec(
        {"name": "gpu", **wanted(SHARED, capacity={"requests": {"memory": "40000Mi", "compute": "50"}})}
    ),
    "part": claim_spec({"name": "gpu", **PART}),
    "full": claim_spec({"name": "gpu", **wanted(PARTS, "has.?full.orValue(false)")}),
}
LIMITED = {"extended": "example.com/gpu", "by-class": f"deviceclass.resource.kubernetes.io/{WHOLE}"}
PODS_OF = {  # by pod: how long it runs, and its claim
    "sharer-0": (LONG_S, {"resourceClaimName": "shared"}),
    "sharer-1": (SHORT_S, {"resourceClaimName": "shared"}),
    "all": (SHORT_S, {"resourceClaimName": "all"}),
    **{
        name: (SHORT_S, {"resourceClaimTemplateName": template})
        for name, template in {
            "one": "one",
            "two": "two",
            "first": "first",
            "admin": "admin",
            "third": "third",
            "half": "half",
            "part-0": "part",
            "part-1": "part",
        }.items()
    },
}
AFTER = "full"  # a pod that waits until the parts of its device are free


@dataclass(frozen=True, slots=True)
class Lives:
    """All pods after their end, what each has shown, and all that a watch told of their claims."""

    pods: dict[str, Json]
    shown: dict[str, dict[str, str]]
    seen: list[Seen]
    slices: dict[str, list[Json]]
    sessions: dict[str, Json]  # by the claim's name

    def of(self, name: str) -> list[Seen]:
        """What the watch told of the claim that was reserved for the pod. Of a pod that has ended the claim
        controller of Kubernetes 1.37 may make another one, which its status names then."""
        uid = self.pods[name]["metadata"]["uid"]
        allocated = (seen.claim for seen in self.seen if seen.allocation)
        (claim,) = {claim["metadata"]["name"] for claim in allocated if uid in users_of(claim)}
        return [seen for seen in self.seen if seen.claim["metadata"]["name"] == claim]

    def session(self, name: str) -> Json:
        """The session of the pod's claim."""
        return self.sessions[self.of(name)[0].claim["metadata"]["name"]]

    def results(self, name: str) -> list[Json]:
        """What was allocated to the pod's claim."""
        found = [each.allocation for each in self.of(name) if each.allocation is not None]
        results: list[Json] = found[0]["devices"]["results"]
        assert all(each == found[0] for each in found), "an allocation changes in no field"
        return results


def users_of(claim: Json) -> list[str]:
    """UIDs of the pods that the claim is reserved for."""
    return [user["uid"] for user in claim["status"].get("reservedFor", [])]


@pytest.fixture(scope="module")
def lives(world: World) -> Iterator[Lives]:
    """Every claim and its pods, all at once on one node, until each has ended and all is released."""
    call = world.stack.cp.api.call
    with dra_drivers(world, FLAGS) as slices, claims.prepared(world, CLASSES):
        with claims.watching(world) as watch:
            for name, spec in DIRECT.items():
                call("POST", CLAIMS, {"metadata": {"name": name}, "spec": spec})
            for name, spec in TEMPLATE_SPECS.items():
                call("POST", TEMPLATES, {"metadata": {"name": name}, "spec": {"spec": spec}})
            for name, (runs_s, claim) in PODS_OF.items():
                call("POST", PODS, claiming_pod(name, runs_s, claim))
            for name, resource in LIMITED.items():
                call("POST", PODS, claiming_pod(name, SHORT_S, resource=resource))
            world.until("the parts", lambda: all(claims.begun(world, f"part-{n}") for n in range(2)))
            call("POST", PODS, claiming_pod(AFTER, 0, {"resourceClaimTemplateName": AFTER}))

            names = [*PODS_OF, *LIMITED, AFTER]
            world.until("the pods to end", lambda: all(has_ended(world, name) for name in names))
            shown = {name: claims.devices_of(world, name) for name in names}
            world.until("the claims to be free", lambda: not any(holding(world)))
            for name in DIRECT:
                call("DELETE", f"{CLAIMS}/{name}")
            world.until("the claims to be gone", lambda: not call("GET", CLAIMS)["items"])
            world.until("the sessions to be settled", lambda: are_settled(world, len(names) - 1))
        pods = {name: claims.pod(world, name) for name in names}
        yield Lives(pods, shown, watch.seen, slices, claims.sessions(world))


def has_ended(world: World, name: str) -> bool:
    """Whether the pod has ended well."""
    phase = claims.pod(world, name)["status"]["phase"]
    assert phase != "Failed"
    return bool(phase == "Succeeded")


def are_settled(world: World, number: int) -> bool:
    """Whether there are so many sessions, all of them posted to their ends."""
    found = [(each["state"], each["pending"]) for each in claims.sessions(world).values()]
    return found == number * [("settled", 0)]


def holding(world: World) -> Iterator[Json]:
    """The claims that are allocated."""
    listed = world.stack.cp.api.call("GET", CLAIMS)["items"]
    yield from (each for each in listed if "allocation" in each.get("status", {}))


def test_each_pod_has_the_devices_of_its_claim_and_no_others(lives: Lives) -> None:
    for name, shown in lives.shown.items():
        results = lives.results(name)
        of_claim = {value for key, value in shown.items() if key.endswith("_RESOURCE_CLAIM")}

        assert _devices(shown) == {each["device"] for each in results}, name
        assert of_claim == {lives.of(name)[0].claim["metadata"]["uid"]}, name
        assert {shown["DRA_RESOURCE_DRIVER_NAME"]} == {each["driver"] for each in results}, name


def _devices(shown: dict[str, str]) -> set[str]:
    return {value for key, value in shown.items() if _DEVICE.fullmatch(key)}


_DEVICE = re.compile(r"GPU_DEVICE_[0-9]+(_PARTITION_[0-9]+|_FULL)?")


def test_what_each_form_of_a_claim_is_allocated(lives: Lives) -> None:
    told = {name: [(each["request"], each["driver"]) for each in lives.results(name)] for name in lives.pods}

    assert told == {
        "sharer-0": [("gpu", WHOLE)],
        "sharer-1": [("gpu", WHOLE)],
        "all": 2 * [("gpu", WHOLE)],
        "one": [("gpu", WHOLE)],
        "two": 2 * [("gpu", WHOLE)],
        "first": [("gpu/any", WHOLE)],
        "admin": [("gpu", WHOLE)],
        "third": [("gpu", SHARED)],
        "half": [("gpu", SHARED)],
        "part-0": [("gpu", PARTS)],
        "part-1": [("gpu", PARTS)],
        "extended": [("container-0-request-0", WHOLE)],
        "by-class": [("container-0-request-0", WHOLE)],
        "full": [("gpu", PARTS)],
    }
    assert {each["device"] for each in lives.results("all")} == {"gpu-8", "gpu-9"}


def consumers(claim: Json) -> int:
    """For how many pods the claim is reserved."""
    return len(claim["status"].get("reservedFor", []))


def test_two_pods_share_a_claim(lives: Lives) -> None:
    assert max(consumers(each.claim) for each in lives.of("sharer-0") if each.allocation) == 2
    assert _devices(lives.shown["sharer-0"]) == _devices(lives.shown["sharer-1"])


def test_the_scheduler_makes_the_claim_of_an_extended_resource(lives: Lives) -> None:
    for name in LIMITED:
        claim, status = lives.of(name)[0].claim, lives.pods[name]["status"]["extendedResourceClaimStatus"]

        assert claim["metadata"]["name"].startswith(f"{name}-extended-resources-")
        assert claim["metadata"]["annotations"] == {EXTENDED: "true"}
        assert [each["resourceName"] for each in status["requestMappings"]] == [LIMITED[name]]


def test_an_administrators_claim_takes_no_device_from_another(lives: Lives) -> None:
    (admin,) = lives.results("admin")

    assert (admin["device"], admin["adminAccess"]) == ("gpu-0", True)
    assert lives.shown["admin"]["DRA_ADMIN_ACCESS"] == "true"
    others = [each["device"] for name in lives.pods if name != "admin" for each in lives.results(name)]
    assert "gpu-0" in others


def test_shares_of_a_device_are_rounded_up_and_have_an_id_each(lives: Lives) -> None:
    shares = {name: lives.results(name)[0] for name in ("third", "half")}

    assert {each["device"] for each in shares.values()} == {"gpu-0"}
    assert {name: each["consumedCapacity"] for name, each in shares.items()} == {
        "third": {"memory": "20Gi", "compute": "33"},
        "half": {"memory": "40Gi", "compute": "50"},  # of 40000Mi, in steps of 1Gi
    }
    assert len({each["shareID"] for each in shares.values()}) == 2
    assert lives.shown["half"]["GPU_DEVICE_0_MEMORY"] == "40Gi"


def test_a_whole_device_waits_until_its_parts_are_released(lives: Lives) -> None:
    parts = [*lives.results("part-0"), *lives.results("part-1")]

    assert {each["device"] for each in parts} == {"gpu-0-partition-0", "gpu-0-partition-1"}
    assert [each["device"] for each in lives.results("full")] == ["gpu-0-full"]
    assert held_ms(lives, "full")[0] >= max(held_ms(lives, f"part-{n}")[1] for n in range(2))


def held_ms(lives: Lives, name: str) -> tuple[int, int]:
    """When the watch told of the allocation of the pod's claim, and of its end."""
    seen = lives.of(name)
    first = next(at for at, each in enumerate(seen) if each.allocation is not None)
    end = next(each for each in seen[first:] if each.allocation is None)
    return seen[first].at_ms, end.at_ms


def finished_ms(lives: Lives, name: str) -> int:
    """When the last pod with the pod's claim had ended."""
    sharers = [pod for sharer, pod in lives.pods.items() if lives.of(sharer) == lives.of(name)]
    return max(milliseconds(state(pod, "main")["terminated"]["finishedAt"]) for pod in sharers)


def test_no_device_is_held_by_two_claims_at_one_time(lives: Lives) -> None:
    """But by an administrator's, and in shares."""
    held: dict[str, set[tuple[str, ...]]] = {}
    most = 0
    for each in lives.seen:
        results = (each.allocation or {}).get("devices", {}).get("results", [])
        held[each.claim["metadata"]["uid"]] = {
            (one["driver"], one["pool"], one["device"], one.get("shareID", ""))
            for one in results
            if not one.get("adminAccess")
        }
        every = [one for devices in held.values() for one in devices]
        assert len(every) == len(set(every))
        most = max(most, len(every))
    assert most >= len(PODS_OF), "they were held at one time"


def test_an_allocation_lasts_from_its_timestamp_until_its_last_pod_has_ended(lives: Lives) -> None:
    for name in lives.pods:
        began_ms, ended_ms = held_ms(lives, name)
        stamps = {each.allocation["allocationTimestamp"] for each in lives.of(name) if each.allocation}
        (stamp_ms,) = map(milliseconds, stamps)

        assert stamp_ms <= began_ms, name
        assert finished_ms(lives, name) <= ended_ms, name


def test_each_claim_is_charged_from_its_allocation_to_its_release(lives: Lives) -> None:
    """Once for each claim, also of two pods. Its timestamp is in whole seconds, and from before it was
    written; no object says when it was released: a watch tells of it."""
    assert {each["kind"] for each in lives.sessions.values()} == {"claim"}
    for name in lives.pods:
        session = lives.session(name)
        (stamp,) = {each.allocation["allocationTimestamp"] for each in lives.of(name) if each.allocation}

        assert milliseconds(stamp) <= session["bound"] <= session["opened"], name
        assert finished_ms(lives, name) <= session["ended"], name
        assert session["posted"] == recorded.RATES[name] * (session["ended"] - session["bound"]), name
    held = {each.claim["metadata"]["name"] for each in lives.seen if each.allocation}
    assert lives.sessions.keys() == held


def test_a_released_claim_stays_if_it_is_the_users_and_else_goes(lives: Lives) -> None:
    last = {name: lives.of(name)[-2:] for name in lives.pods}

    assert {kind for each in last.values() for kind in [each[-1].kind]} == {"DELETED"}
    for name in ("sharer-0", "all"):
        before = last[name][0].claim["status"]
        assert "allocation" not in before


def test_the_recorded_objects_are_as_they_are_made(lives: Lives) -> None:
    """One that is not recorded is written: look at it, and run the test again."""
    allocated = {}
    for name in lives.pods:
        held = [each.claim for each in lives.of(name) if each.allocation]
        allocated[name] = recorded.pruned(max(held, key=consumers))
    made = {
        "slices": {name: list(map(recorded.pruned, each)) for name, each in lives.slices.items()},
        "claims": allocated,
        "pods": {name: recorded.claims_of(pod) for name, pod in lives.pods.items()},
    }
    missing = [name for name in made if not recorded.file(name).exists()]
    for name in missing:
        recorded.file(name).write_text(yaml.safe_dump(made[name]))

    assert missing == []
    for name, content in made.items():
        assert recorded.anonymous(content) == recorded.anonymous(recorded.read(name))
