"""Messages on device claims and on the pods that use them, which become their Events."""

import pytest

from tests.timekeeper.claims import allocated, device_claim, device_slice
from tests.timekeeper.ledger.test_claims import pod
from tests.timekeeper.worlds import HOUR, MINUTE, SECOND, T0, Json, Town, budgets
from timekeeper.edge.reflector import WatchFailed
from timekeeper.settler.cluster.cluster_state import WatchUpdate

ONE_DATABASE = "decisions about values"
CLAIMS = "resourceclaims"
SLICE = ("resourceslices", device_slice("gpu-0"))


def held(*pods: str, device: str = "gpu-0") -> Json:
    """The claim ``c`` since T0, reserved for these pods."""
    claim = device_claim("c", allocated(device), at_ms=T0, pods=tuple(f"uid-{each}" for each in pods))
    for entry, name in zip(claim["status"].get("reservedFor", ()), pods, strict=True):
        entry["name"] = name
    return claim


def told(town: Town) -> list[tuple[str, str, str, str]]:
    """Of each message: the object's kind, name and UID, and the reason; they are forgotten then."""
    found: list[tuple[str, str, str, str]] = [
        (each.kind, each.name, each.uid, each.reason) for each in town.claim_notices
    ]
    town.claim_notices.clear()
    return found


def pass_time(town: Town, ms: int) -> None:
    town.clock.turn(ms)
    town.quiet(CLAIMS)
    town.tick()


def both(reason: str) -> list[tuple[str, str, str, str]]:
    return [("ResourceClaim", "c", "claim-c", reason), ("Pod", "p", "uid-p", reason)]


@pytest.fixture
def holding(town: Town) -> Town:
    """The claim of a running pod, in a namespace with an hour's budget."""
    town.begin(SLICE, (CLAIMS, device_claim()), ("configmaps", budgets(team_a="gpuHours: 1\nwarnAt: 0.5")))
    town.hear("pods", pod())
    town.change(CLAIMS, held("p"))
    return town


def test_a_claim_with_a_certain_rate_says_nothing(holding: Town) -> None:
    pass_time(holding, 5 * MINUTE)

    assert told(holding) == []


def test_a_device_that_no_slice_describes_is_named_on_the_claim_and_its_pods(town: Town) -> None:
    town.begin(SLICE, (CLAIMS, device_claim()))
    town.hear("pods", pod())
    town.change(CLAIMS, held("p", device="gone"))
    pass_time(town, 6 * SECOND)

    message = town.claim_notices[0].message
    assert told(town) == both("ClaimRateAssumed")
    assert message == (
        "Claim c is charged at the rate 1, which is not certain: no ResourceSlice has its device, which"
        " counts as a whole one with weight 1."
    )
    pass_time(town, MINUTE)
    assert told(town) == [], "once"


def test_a_claim_that_is_reserved_for_no_pod_is_named_once(holding: Town) -> None:
    holding.change(CLAIMS, held())
    assert told(holding) == [], "its next pod may be about to come"

    pass_time(holding, 2 * MINUTE)
    assert told(holding) == both("ClaimUnused")[:1]
    pass_time(holding, 2 * MINUTE)
    assert told(holding) == []

    holding.change(CLAIMS, held("p"))
    holding.change(CLAIMS, held())
    pass_time(holding, 2 * MINUTE)
    assert told(holding) == both("ClaimUnused")[:1], "again"


def named_by_doctor(town: Town) -> list[str]:
    found = town.get("/v1/doubts").get_json()["deviceClaims"]
    return [each["claim"] for each in found["named"]]


def group(claim: Json) -> Json:
    """The claim, reserved for a PodGroup, too."""
    entry = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "uid-g"}
    claim["status"]["reservedFor"].append(entry)
    return claim


def again(uid: str) -> Json:
    """A pod of the name ``p`` with another UID."""
    raw = pod()
    raw["metadata"]["uid"] = uid
    return raw


ENDED = pod(ended_ms=T0 + SECOND)


@pytest.mark.parametrize(
    ("claim", "gone", "there", "reasons"),
    [
        (held("p"), [], [], []),
        (held("p"), [pod()], [], ["ClaimUnused"]),
        (held("p"), [pod()], [again("uid-new")], ["ClaimUnused"]),
        (held("p"), [], [ENDED], ["ClaimUnused"]),
        (held("never"), [], [], ["ClaimUnused"]),
        (held("p", "q"), [pod()], [], ["ClaimUnused"]),
        (held("p", "q"), [pod()], [pod("q")], []),
        (held("p", "never"), [], [], []),
        (group(held("p")), [pod()], [], []),
        (group(held()), [], [], []),
        (held(device="wire"), [], [], []),
    ],
    ids=[
        "it runs",
        "its pod is gone",
        "its pod came again",
        "its pod has ended",
        "its pod never was",
        "one of two is gone and the other never was",
        "one of two is there",
        "one of two never was",
        "a PodGroup uses it, too",
        "a PodGroup uses it",
        "nothing is charged",
    ],
)
def test_a_claim_that_no_pod_of_its_uids_uses_is_named_within_a_minute_by_event_and_doctor(
    town: Town, claim: Json, gone: list[Json], there: list[Json], reasons: list[str]
) -> None:
    wire = device_slice("wire", driver="nic.example.com")
    town.begin(SLICE, ("resourceslices", wire), (CLAIMS, device_claim()))
    for result in claim["status"]["allocation"]["devices"]["results"]:
        result["driver"] = "nic.example.com" if result["device"] == "wire" else result["driver"]
    town.hear("pods", pod())
    town.change(CLAIMS, claim)
    for raw in gone:
        town.change("pods", raw, deleted=True)
    for raw in there:
        town.change("pods", raw)
    pass_time(town, 20 * SECOND)
    assert told(town) == []

    pass_time(town, 40 * SECOND)

    assert [reason for *_, reason in told(town)] == reasons
    assert named_by_doctor(town) == ["c"] * len(reasons)
    assert ("do not exist or have ended" in explained(town)) == bool(reasons)


def explained(town: Town) -> str:
    charges = town.get("/v1/explain/team-a/claim/c").get_json()["charges"]
    return " ".join(each["sentence"] for each in charges)


def test_a_pod_that_comes_late_is_missing_no_more_and_its_message_names_it(holding: Town) -> None:
    holding.change(CLAIMS, held("p", "late"))
    holding.change("pods", pod(), deleted=True)
    pass_time(holding, MINUTE)

    (message,) = [each.message for each in holding.claim_notices]
    assert message == (
        "Claim c holds devices, and is reserved for pods that do not exist or have ended: p (UID uid-p),"
        " late (UID uid-late). Namespace team-a pays for them until the claim is deleted, or a pod has used"
        " it."
    )
    holding.change("pods", pod("late"))
    pass_time(holding, 2 * SECOND)
    assert named_by_doctor(holding) == []


def test_while_pods_are_not_watched_none_is_missing(holding: Town) -> None:
    holding.settler.apply(WatchUpdate("pods", holding.clock(), WatchFailed("away")))
    holding.change(CLAIMS, held("new"))
    pass_time(holding, 2 * MINUTE)
    assert told(holding) == []

    holding.quiet()
    holding.tick()
    assert told(holding) == both("ClaimUnused")[:1]


def test_the_claim_and_the_bound_pods_read_what_becomes_of_the_budget(holding: Town) -> None:
    pass_time(holding, 40 * MINUTE)
    assert told(holding) == both("BudgetNearlyUsed")

    pass_time(holding, HOUR)
    message, kind = holding.claim_notices[0].message, holding.claim_notices[0].type
    assert told(holding) == both("OverBudget")
    assert "Namespace team-a has used or reserved" in message
    assert kind == "Warning"


def test_pods_that_ended_or_have_no_node_and_other_namespaces_read_nothing(holding: Town) -> None:
    holding.hear("pods", pod("done", ended_ms=T0 + 2 * MINUTE))
    holding.hear("pods", pod("waits", on=""))
    other = pod("other")
    other["metadata"]["namespace"] = "team-b"
    holding.hear("pods", other)
    holding.hear("pods", pod("gone"))
    holding.change("pods", pod("gone"), deleted=True)

    pass_time(holding, 2 * HOUR)

    assert told(holding) == both("OverBudget")


def test_an_event_names_the_claim_as_kubernetes_does(holding: Town) -> None:
    pass_time(holding, 2 * HOUR)

    claim, of_pod = (each.regarding for each in holding.claim_notices)
    where = {"namespace": "team-a", "name": "c", "uid": "claim-c"}
    assert claim == {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **where}
    assert of_pod == {**claim, "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p"}
