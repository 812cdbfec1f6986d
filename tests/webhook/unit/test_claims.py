"""Pods with device claims at admission: they meet the rules of pods with limits, and nothing waits for what
is not known yet."""

from dataclasses import replace
from threading import Event
from typing import Any

import pytest

from tests.support.waiting import eventually
from tests.webhook.exports import without_empty
from tests.webhook.worlds import (
    OBSERVING,
    POLICY,
    admitted,
    counted,
    half,
    patched,
    plain,
    review,
    with_annotations,
)
from tests.worlds import Json
from timekeeper.core.admission.policy import AdmissionPolicy, Standing
from timekeeper.core.request.claims import EXPLICIT, KnownClaims, read_requests
from timekeeper.core.request.device_classes import ClassSettings, DeviceClass
from timekeeper.core.request.request import parse
from timekeeper.core.standings import Cap, Caps
from timekeeper.runtime.api_server import Answered, Api, Reply
from webhook.admission.pods import mutate
from webhook.admission.validation import validate
from webhook.log import log
from webhook.server.claim_cache import ClaimCache
from webhook.wire.pod_review import AdmissionAnswer

GATE = {"name": "bursar.dev/budget"}
IN, OVER = Standing("IN_BUDGET"), Standing("OVER_BUDGET")
HELD = replace(OVER, on_exhausted="hold")
DENIED = replace(OVER, on_exhausted="deny")


def template(name: str, **fields: Any) -> Json:
    """A template's spec: one request."""
    return {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": name, **fields}}]}}


KNOWN = KnownClaims(
    classes={
        "gpu": DeviceClass("gpu", "gpu.nvidia.com", "nvidia.com/gpu"),
        "nic": DeviceClass("nic", "nic.example.com"),
        "odd": DeviceClass("odd"),
    },
    templates={
        ("team-a", name): read_requests(spec)
        for name, spec in {
            "two": template("gpu", count=2),
            "wire": template("nic"),
            "odd": template("odd"),
            "all": template("gpu", allocationMode="All"),
        }.items()
    },
    settings=ClassSettings(other_drivers=frozenset({"nic.example.com"})),
)
CLAIMS = replace(POLICY, claims=KNOWN)


def claiming(name: str, **spec: Any) -> Json:
    """A pod with a claim of this template."""
    return admitted(plain("main"), resourceClaims=[{"name": "c", "resourceClaimTemplateName": name}], **spec)


def mutated(raw: Json, standing: Standing = IN, policy: AdmissionPolicy = CLAIMS) -> AdmissionAnswer:
    """The answer of /mutate."""
    return mutate(review(raw), lambda _: standing, policy)


def after(raw: Json, standing: Standing = IN, policy: AdmissionPolicy = CLAIMS) -> Json:
    """The admitted pod, of which /validate agrees that it is governed."""
    answer = mutated(raw, standing, policy)
    assert answer.refusal == ""
    changed = patched(raw, list(answer.operations))
    assert validate(review(changed), policy).refusal == ""
    assert mutated(changed, standing, policy).operations == (), "a second call changes it"
    return changed


def annotations(raw: Json) -> Json:
    """Those under bursar.dev/ that say what was counted and how it is held."""
    found = raw["metadata"].get("annotations") or {}
    names = {"claims": "bursar.dev/claims", "held": "bursar.dev/held", "declared": "bursar.dev/declared"}
    return {short: found[name] for short, name in names.items() if name in found}


def test_a_pod_with_claims_is_counted_classed_and_left_to_the_one_scheduler_without_a_sidecar() -> None:
    for scheduler in ("default-scheduler", "bursar-scheduler", "volcano"):
        made = after(claiming("two", schedulerName=scheduler))

        assert made["metadata"]["labels"] == {"bursar.dev/governed": "true"}
        assert annotations(made) == {"claims": "2"}
        spec = made["spec"]
        assert (spec["schedulerName"], spec["priorityClassName"]) == (
            "default-scheduler",
            "gpu-default-priority",
        )
        assert "initContainers" not in spec
        assert "volumes" not in spec

    assert mutated(claiming("two", schedulerName="volcano")).warnings == (
        'schedulerName "volcano" is replaced: default-scheduler alone allocates devices to claims.',
    )
    other = replace(CLAIMS, claim_scheduler="volcano")
    assert after(claiming("two"), policy=other)["spec"]["schedulerName"] == "volcano"


def test_a_spent_budget_holds_refuses_or_demotes_it() -> None:
    held = after(claiming("two"), HELD)

    assert held["spec"]["schedulingGates"] == [GATE]
    assert annotations(held) == {"claims": "2", "held": "budget"}
    assert held["spec"]["priorityClassName"] == "gpu-default-priority"
    assert after(claiming("two"), OVER)["spec"]["priorityClassName"] == "gpu-lower-priority"
    assert "onExhausted: deny" in mutated(claiming("two"), DENIED).refusal


@pytest.mark.parametrize("standing", [IN, HELD, DENIED, OVER, Standing("UNKNOWN")])
def test_what_is_not_known_is_held_whatever_the_standing_and_costs_nothing_here(standing: Standing) -> None:
    answer = mutated(claiming("later"), standing)
    made = after(claiming("later"), standing)

    assert made["spec"]["schedulingGates"] == [GATE]
    assert annotations(made) == {"claims": "unknown", "held": "budget" if standing == HELD else "turn"}
    assert answer.warnings[-1] == (
        "This pod is held until it is known what it asks for: ResourceClaimTemplate later."
    )
    assert counted(answer) is None


def test_validate_takes_the_number_that_mutate_wrote_though_it_knows_another() -> None:
    made = after(claiming("two"), policy=CLAIMS)
    blank = replace(CLAIMS, claims=KnownClaims())

    assert validate(review(made), blank).refusal == ""
    assert validate(review(after(claiming("two"), policy=blank)), CLAIMS).refusal == ""


def test_claims_of_no_gpus_are_recorded_beside_devices_that_no_dialect_reads() -> None:
    habana = plain("main", resources={"limits": {"habana.ai/gaudi": "1"}})
    beside = admitted(habana, resourceClaims=claiming("wire")["spec"]["resourceClaims"])
    made = after(beside, policy=replace(CLAIMS, unknown_accelerators="meter"))

    request = parse(made).request
    assert annotations(made) == {"claims": "0"}
    assert request is not None
    assert (request.dialect, request.asks[0].ask.device) == ("device", "habana.ai/gaudi")


def test_a_pod_that_mutate_did_not_see_is_refused() -> None:
    assert "Bursar wrote nothing here" in validate(review(claiming("two")), CLAIMS).refusal
    assert validate(review(claiming("wire")), CLAIMS).refusal == ""


def test_a_number_that_a_user_wrote_is_overwritten_or_removed() -> None:
    forged = {"bursar.dev/claims": "7"}

    assert annotations(after(with_annotations(claiming("two"), {"bursar.dev/claims": "0"}))) == {
        "claims": "2"
    }
    assert annotations(after(with_annotations(claiming("two"), {"bursar.dev/claims": "unknown"}))) == {
        "claims": "2"
    }
    for raw in (claiming("wire"), admitted(half())):
        answer = mutated(with_annotations(raw, forged))
        assert answer.rules == (("forged-annotation", "warn"),)
        made = patched(with_annotations(raw, forged), list(answer.operations))
        assert annotations(made) == annotations(after(raw))


def test_devices_that_are_no_gpus_pass_with_a_record_of_that_and_unknown_classes_are_refused() -> None:
    """So the timekeeper sees it if the claim becomes another."""
    wire = claiming("wire")
    for standing in (IN, HELD, DENIED):
        answer = mutated(wire, standing)
        assert (answer.verdict, answer.admission, answer.warnings) == ("passed", None, ())
        assert after(wire, standing) == with_annotations(wire, {"bursar.dev/claims": "0"})
    beside = admitted(half(), resourceClaims=wire["spec"]["resourceClaims"])
    assert after(beside)["spec"]["schedulerName"] == "bursar-scheduler"
    assert annotations(after(beside)) == {"claims": "0"}
    assert "no selector requires one driver" in mutated(claiming("odd")).refusal


def test_limits_of_classes_and_caps_count_them() -> None:
    limited = admitted(plain("main", resources={"limits": {f"{EXPLICIT}gpu": "3"}}))
    capped = replace(CLAIMS, caps=Caps(own=Cap(total_milli=2_000)))

    assert annotations(after(limited)) == {"claims": "3"}
    assert "maxGPUs" in mutated(limited, policy=capped).refusal
    made = after(claiming("two"), policy=capped)
    assert annotations(made) == {"claims": "2", "held": "turn"}, "the timekeeper keeps the cap"


def test_declared_time_is_recorded_and_asked_for() -> None:
    asking = replace(CLAIMS, requires_duration=True, reserves_declared=True)
    waits = replace(IN, hold="budget")

    assert "requireDuration" in mutated(claiming("two"), waits, asking).refusal
    made = after(claiming("two", activeDeadlineSeconds=60), waits, asking)
    assert annotations(made) == {"claims": "2", "held": "budget", "declared": "60"}


def test_all_devices_of_a_node_are_refused_unless_the_rule_only_warns() -> None:
    warned = replace(CLAIMS, rules={"claim-size": "warn"})

    assert "allocationMode: All" in mutated(claiming("all")).refusal
    assert annotations(after(claiming("all"), policy=warned)) == {"claims": "32"}


def test_observe_changes_nothing() -> None:
    observing = replace(OBSERVING, claims=KNOWN)

    for name in ("two", "later", "wire"):
        for standing in (IN, HELD, DENIED, OVER):
            answer = mutated(claiming(name), standing, observing)
            assert (answer.refusal, answer.operations) == ("", ())
        assert validate(review(claiming(name)), observing).refusal == ""


def test_a_resource_that_a_class_of_gpus_serves_keeps_the_one_scheduler() -> None:
    whole = admitted(plain("main", resources={"limits": {"nvidia.com/gpu": "1"}}))
    serving = replace(CLAIMS, claims=replace(KNOWN, resources=frozenset({"nvidia.com/gpu"})))

    assert after(whole)["spec"]["schedulerName"] == "bursar-scheduler"
    assert after(whole, policy=serving)["spec"]["schedulerName"] == "default-scheduler"


@pytest.mark.parametrize("name", ["two", "wire"])
def test_what_one_worker_did_not_know_another_decides(name: str) -> None:
    """The API server may send the second call for a pod to a worker that has the template by now."""
    unaware = replace(POLICY, claims=replace(KNOWN, templates={}))
    held = after(claiming(name), policy=unaware)

    again = mutated(held)

    assert held["metadata"]["annotations"]["bursar.dev/claims"] == "unknown"
    assert held["spec"]["schedulingGates"] == [GATE]
    assert validate(review(held), CLAIMS).refusal == ""
    assert again.refusal == ""
    made = without_empty(patched(held, list(again.operations)))
    made["spec"]["containers"][0].pop("env", None)  # void is in a pod of no GPUs, too
    expected = without_empty(after(claiming(name)))
    expected["spec"]["containers"][0].pop("env", None)
    assert made == expected


def test_a_user_who_writes_all_of_that_but_the_gate_wins_nothing() -> None:
    held = after(claiming("two"), policy=replace(POLICY, claims=replace(KNOWN, templates={})))
    spec = {key: each for key, each in held["spec"].items() if key != "schedulingGates"}

    forged = {**held, "spec": spec}

    answer = mutated(forged)

    assert without_empty(patched(forged, list(answer.operations))) == without_empty(after(claiming("two")))


class OldServer(Api):
    """An API server of Kubernetes 1.34, and later of another minor version, that has no objects."""

    def __init__(self) -> None:
        """Without a connection."""
        self.minor = "34"

    def call(self, method: str, path: str, *_: Any, **__: Any) -> Reply:
        return Answered(200, {"major": "1", "minor": self.minor} if path == "/version" else {"items": []})


class HastyEvent(Event):
    """It waits no five minutes."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(None if timeout is None else min(timeout, 0.01))


def test_a_worker_knows_how_this_kube_scheduler_counts_devices_of_init_containers_also_later() -> None:
    server = OldServer()
    cache = ClaimCache(server, log)
    cache._ended = HastyEvent()
    cache.start()

    eventually(lambda: not cache.known.reuses)
    server.minor = "36"
    eventually(lambda: cache.known.reuses)
    cache.end()


def test_a_worker_knows_which_namespaces_exist_where_it_follows_them() -> None:
    cache = ClaimCache(None, log)

    assert cache.may_exist("no-such")

    cache.has_user_range["team-a"] = False
    assert [cache.may_exist(name) for name in ("team-a", "no-such", "")] == [True, False, False]


def limited(name: str, **limits: str) -> Json:
    """A pod with a claim of this template, and these limits."""
    given = {resource.replace("__", "/").replace("_", "."): amount for resource, amount in limits.items()}
    raw = admitted(plain("main", resources={"limits": given}))
    raw["spec"]["resourceClaims"] = claiming(name)["spec"]["resourceClaims"]
    return raw


METERING = replace(CLAIMS, unknown_accelerators="meter")
CARDS = {"nvidia_com__gpu": "4"}
DEVICES = {"habana_ai__gaudi": "4"}


@pytest.mark.parametrize("scheduler", ["default-scheduler", "bursar-scheduler"])
@pytest.mark.parametrize(
    ("limits", "cards"), [(CARDS, ("nvidia", "")), (DEVICES, ("device", "habana.ai/gaudi"))]
)
@pytest.mark.parametrize(("name", "record", "held"), [("wire", "0", ""), ("later", "unknown", "turn")])
def test_whole_cards_of_a_plugin_beside_a_claim_keep_the_scheduler_for_claims_from_their_creation(
    scheduler: str, limits: dict[str, str], cards: tuple[str, str], name: str, record: str, held: str
) -> None:
    """As with IMEX channels and network devices, whose templates a controller makes a moment later."""
    raw = limited(name, **limits)
    raw["spec"]["schedulerName"] = scheduler
    made = after(raw, policy=METERING)

    assert annotations(made) == {"claims": record, **({"held": held} if held else {})}
    assert made["spec"].get("schedulingGates", []) == ([GATE] if held else [])
    request = parse(made).request
    assert request is not None
    assert (request.dialect, request.asks[0].ask.device, request.asks[0].ask.devices) == (*cards, 4)
    assert request.are_claims_known == (not held)
    if limits == CARDS:
        assert made["spec"]["schedulerName"] == "default-scheduler"


@pytest.mark.parametrize("name", ["later", "two"])
@pytest.mark.parametrize(
    "limits",
    [{"bursar_dev__gpu-percent": "50"}, {"nvidia_com__gpu_shared": "1"}, {"tencent_com__vcuda-core": "100"}],
)
def test_shares_beside_a_claim_that_is_or_may_be_of_gpus_are_refused(
    name: str, limits: dict[str, str]
) -> None:
    assert "no scheduler places both" in mutated(limited(name, **limits)).refusal


def test_cards_beside_claims_of_gpus_are_refused_and_of_what_is_not_known_are_judged_at_once() -> None:
    capped = replace(CLAIMS, caps=Caps(own=Cap(pod_milli=2_000)))

    assert "no scheduler places both" in mutated(limited("two", **CARDS)).refusal
    assert "maxGPUsPerPod" in mutated(limited("later", **CARDS), policy=capped).refusal
    assert mutated(limited("later", **CARDS), DENIED).refusal
    answer = mutated(limited("later", **CARDS))
    assert "This pod is held until it is known" in answer.warnings[-1]
    assert counted(answer) is None


def test_in_observe_and_where_bursar_places_nothing_they_keep_their_scheduler() -> None:
    raw = limited("later", **CARDS)
    raw["spec"]["schedulerName"] = "volcano"
    off = replace(CLAIMS, places=False)

    assert mutated(raw, policy=replace(OBSERVING, claims=KNOWN)).operations == ()
    assert after(raw, policy=off)["spec"]["schedulerName"] == "volcano"


def test_a_user_who_writes_that_nothing_is_known_of_its_claims_wins_nothing() -> None:
    forged = with_annotations(limited("wire", **CARDS), {"bursar.dev/claims": "unknown"})
    forged["metadata"]["labels"] = {"bursar.dev/governed": "true"}

    assert annotations(after(forged, policy=METERING)) == {"claims": "0"}
