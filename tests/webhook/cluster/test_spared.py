"""Pods that /validate is not asked about, on a real API server: by the match condition that the certificate
process keeps, with its own rights. What it would have said of them is asked afterwards."""

import signal
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from deploy.local.api import ApiError
from deploy.local.cluster import ControlPlane
from deploy.local.stack import NAMESPACE, Stack
from tests.webhook.cluster.test_calls import World
from tests.webhook.cluster.test_survives import is_governed, manifest, named, sees
from tests.webhook.injector import ALL, CHANGES, RULE, Injector, configuration
from tests.webhook.replicas import Certificates
from tests.webhook.servers import wait_until
from tests.webhook.worlds import half, plain, review_of
from tests.worlds import Json
from webhook.controller.checks import NAME
from webhook.controller.cluster import Cluster
from webhook.settings.settings import CONFIGURATION

pytestmark = pytest.mark.cluster

_MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_CHECKING = f"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{CONFIGURATION}"
_PODS = "/api/v1/namespaces/free/pods"
NAMES = ("--extra-name", "127.0.0.1", "--extra-name", "localhost", "--every", "1")
BEFORE, AFTER = "a-other", "zzz-other"


class Spared(World):
    """All of Bursar with its certificate process, and another's webhook that is called before ours, once."""

    def __init__(self, stack: Stack, ending: ExitStack) -> None:
        super().__init__(stack)
        self.ending = ending
        self.injector = Injector(self.tls())
        ending.callback(self.injector.end)
        self.api.call("POST", _MUTATING, self.other(BEFORE, "Never"))
        self.process = self.certificates("spared")

    def certificates(self, name: str, *flags: str) -> Certificates:
        """The certificate process, by the rights of its own account; another may lead."""
        kubeconfig = self.stack.cp.kubeconfig(self.stack.token(NAMESPACE, "bursar-certificates"), name)
        folder = self.stack.folder
        made = Certificates(self.stack.cp, folder, name, *NAMES, *flags, kubeconfig=kubeconfig)
        return self.ending.enter_context(made)

    def is_spared(self) -> bool:
        """Whether the condition is there."""
        webhooks = self.api.call("GET", _CHECKING)["webhooks"]
        (check,) = (each for each in webhooks if each["name"] == "check.bursar.dev")
        return NAME in [each["name"] for each in check["matchConditions"]]

    def checks(self) -> int:
        """How often /validate is asked about a new pod at this moment."""
        _, asked = self.creates("free")
        return int(asked["validate"])

    def settles(self, checks: int) -> None:
        """Waits until so many calls are made for each new pod."""
        wait_until(lambda: self.checks() == checks, f"{checks} checks of a pod", within_s=30)

    def create(self, pod: Json) -> tuple[Json, dict[str, int]]:
        """The pod as it is stored, and how often each webhook was asked for it."""
        return self.counted("free", pod)

    def would_be_taken(self, stored: Json) -> bool:
        """What /validate says of it when it is asked after all."""
        body = orjson.dumps(review_of(stored, namespace="free"))
        url = f"{self.stack.webhook_url}/validate"
        with urllib.request.urlopen(url, body, context=self.stack.tls_context()) as answer:
            return bool(orjson.loads(answer.read())["response"]["allowed"])

    def other(self, name: str, *again: str) -> Json:
        """Another's webhooks, of these ways to be called again."""
        made = configuration(name, self.injector, self.ca_bundle())
        made["webhooks"] = [each for each in made["webhooks"] if each["reinvocationPolicy"] in again]
        return made

    @contextmanager
    def beside(self, name: str, *again: str) -> Iterator[None]:
        """Others' webhooks of this configuration's name, until exit."""
        self.api.call("POST", _MUTATING, self.other(name, *again))
        try:
            yield
        finally:
            self.api.call("DELETE", f"{_MUTATING}/{name}")


@pytest.fixture(scope="module")
def world() -> Iterator[Spared]:
    """One for all tests here; what a test has in the way, it takes away again."""
    with ControlPlane() as cp, Stack(cp) as stack, ExitStack() as ending:
        yield Spared(stack, ending)


@pytest.fixture
def spared(world: Spared) -> Spared:
    """The world while checks are spared."""
    world.settles(0)
    return world


def gated(name: str, *containers: Json, labels: Json | None = None, **spec: Any) -> Json:
    """A pod as a user writes it, which no scheduler touches."""
    gates = [{"name": "example.com/test"}]
    return manifest(name, *containers, labels=labels, schedulingGates=gates, **spec)


def test_an_ordinary_pod_is_governed_and_not_asked_about_again(spared: Spared) -> None:
    stored, asked = spared.create(gated("ordinary", half(), plain("web")))

    assert asked == {"mutate": 1, "validate": 0}
    is_governed(stored)
    assert spared.would_be_taken(stored)
    assert spared.process.log().count("event=checks-spared") == 1


def test_what_does_not_hold_of_a_pod_would_be_found(spared: Spared) -> None:
    """Or the tests here that ask /validate afterwards could not fail."""
    stored, _ = spared.create(gated("changed", half()))

    stored["spec"]["containers"][0]["env"] = [ALL]

    assert not spared.would_be_taken(stored)


@pytest.mark.parametrize("change", [*CHANGES, "asks", "stubborn", "takes-away"])
def test_whatever_another_has_changed_before_us_is_seen_in_the_end(spared: Spared, change: str) -> None:
    labels = {"change": change, "called": BEFORE, "again": "Never"}
    first = half() if change != "asks" else plain("main")

    stored, asked = spared.create(
        gated(f"before-{change}", first, plain("web"), labels=labels, initContainers=[plain("setup")])
    )

    assert change in [path for path, _ in spared.injector.calls]
    assert asked["validate"] == 0
    is_governed(stored)
    assert spared.would_be_taken(stored)


def test_what_the_api_servers_own_plugins_add_to_our_sidecar_is_seen(spared: Spared) -> None:
    spared.give_floor("limited")

    assert spared.creates("limited")[1] == {"mutate": 2, "validate": 0}


_EVERYTHING = """
Object{spec: Object.spec{containers: object.spec.containers.map(c, Object.spec.containers{
  name: c.name,
  env: [Object.spec.containers.env{name: "NVIDIA_VISIBLE_DEVICES", value: "all"}]
})}}
"""


def test_a_policy_that_changes_pods_comes_before_us_and_is_seen(spared: Spared) -> None:
    """One that shows all cards to every container, at each call anew."""
    api = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"
    label = {"matchLabels": {"shown": "all"}}
    how = {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": _EVERYTHING}}
    policy = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {"objectSelector": label, "resourceRules": [RULE]},
        "mutations": [how],
    }
    spared.api.call("POST", api, {"metadata": {"name": "zzz"}, "spec": policy})
    binding = {"metadata": {"name": "zzz"}, "spec": {"policyName": "zzz"}}
    spared.api.call("POST", f"{api.removesuffix('ies')}ybindings", binding)

    def is_acted_on() -> bool:
        pod = gated("probe", plain("main"), labels={"shown": "all"})
        try:
            spared.api.call("POST", f"{_PODS}?dryRun=All", pod)
        except ApiError as error:
            return "sees-cards-without-asking" in str(error) or "it may see none" in str(error)
        return False

    wait_until(is_acted_on, "the policy to be acted on")

    stored, asked = spared.create(gated("shown", half(), plain("web"), labels={"shown": "all"}))

    assert asked["mutate"] >= 1
    assert asked["validate"] == 0
    is_governed(stored)
    assert spared.would_be_taken(stored)


def test_one_that_comes_after_us_has_every_pod_checked_again_while_it_is_there(spared: Spared) -> None:
    hostile = {"change": "stubborn", "called": AFTER, "again": "IfNeeded"}
    with spared.beside(AFTER, "IfNeeded", "Never"):
        wait_until(lambda: not spared.is_spared(), "the condition to go", within_s=5)
        spared.settles(1)

        with pytest.raises(ApiError, match="another webhook or a race changed what Bursar had written here"):
            spared.create(gated("stubborn", half(), labels=hostile))
        assert f"of {AFTER} is called after" in spared.process.log()

    wait_until(spared.is_spared, "the condition to come back", within_s=5)
    spared.settles(0)


def test_one_that_asks_for_a_second_call_has_every_pod_checked_again(spared: Spared) -> None:
    with spared.beside("b-other", "IfNeeded"):
        wait_until(lambda: not spared.is_spared(), "the condition to go", within_s=5)
        spared.settles(1)
    spared.settles(0)


LATE = {"change": "asks-late", "called": "b-other", "again": "IfNeeded"}


def test_a_request_that_comes_in_the_second_round_with_our_label_is_refused(spared: Spared) -> None:
    """Where we were not asked in the first we are not asked at all. Without the check it would be stored."""
    cluster = Cluster(spared.stack.cp.admin_kubeconfig, NAMESPACE)
    spared.add("late")
    spared.give_floor("late")  # or nothing would change after the first round, and there were no second
    path = "/api/v1/namespaces/late/pods?dryRun=All"
    pod = gated("late", plain("main"), labels=LATE)
    found: list[str] = []

    def is_called_twice() -> bool:
        before = len(spared.injector.calls)
        try:
            made = spared.api.call("POST", path, pod)
            found.append("stored" if "bursar.dev/governed" in made["metadata"]["labels"] else "as it was")
        except ApiError as error:
            found.append(str(error))
        return len(spared.injector.calls) - before == 2

    with spared.beside("b-other", "IfNeeded"):
        spared.settles(1)
        wait_until(is_called_twice, "the second round")
        assert "another webhook or a race changed what Bursar had written here" in found[-1]
        spared.process.process.send_signal(signal.SIGSTOP)
        try:
            cluster.spare(CONFIGURATION, datetime.now(UTC) + timedelta(minutes=1))
            wait_until(lambda: is_called_twice() and found[-1] == "stored", "what is prevented to happen")
        finally:
            cluster.spare(CONFIGURATION, None)
            spared.process.process.send_signal(signal.SIGCONT)
    spared.settles(0)


def test_who_pretends_to_be_governed_is_refused_without_the_check(spared: Spared) -> None:
    labels = {"bursar.dev/governed": "true"}

    with pytest.raises(ApiError, match=r"govern\.bursar\.dev"):
        spared.create(gated("pretends", plain("main"), labels=labels))
    with pytest.raises(ApiError, match=r"govern\.bursar\.dev"):
        spared.create(gated("pretends-too", half(securityContext={"privileged": True}), labels=labels))
    stored, asked = spared.create(gated("pretends-well", half(), labels=labels))
    is_governed(stored)
    assert asked == {"mutate": 1, "validate": 0}


def test_without_the_one_that_governs_those_who_pretend_are_checked(spared: Spared) -> None:
    ours = spared.api.call("GET", f"{_MUTATING}/{CONFIGURATION}")
    spared.api.call("DELETE", f"{_MUTATING}/{CONFIGURATION}")
    try:
        wait_until(lambda: not spared.is_spared(), "the condition to go", within_s=5)

        def is_refused() -> bool:
            labels = {"bursar.dev/governed": "true"}
            try:
                spared.api.call("POST", f"{_PODS}?dryRun=All", gated("x", half(), labels=labels))
            except ApiError as error:
                return "check.bursar.dev" in str(error)
            return False

        wait_until(is_refused, "the check of all pods", within_s=5)
    finally:
        anew = {"metadata": {"name": CONFIGURATION}, "webhooks": ours["webhooks"]}
        spared.api.call("POST", _MUTATING, anew)
    spared.settles(0)


def test_what_is_no_creation_is_checked_as_ever(spared: Spared) -> None:
    stored, _ = spared.create(gated("debugged", half()))
    path = f"{_PODS}/debugged/ephemeralcontainers"
    debugger = {"name": "debug", "image": "x", "env": [ALL]}
    before = spared.asked()["validate"]

    body = {"spec": {"ephemeralContainers": [debugger | {"securityContext": {"privileged": True}}]}}

    with pytest.raises(ApiError, match="privileged"):
        spared.api.call("PATCH", path, body, "application/strategic-merge-patch+json")

    assert stored["metadata"]["labels"]["bursar.dev/governed"] == "true"
    assert spared.asked()["validate"] == before + 1


def test_a_dry_run_is_spared_like_what_it_tries(spared: Spared) -> None:
    before = spared.asked()

    tried = spared.api.call("POST", f"{_PODS}?dryRun=All", gated("tried", half(), plain("web")))

    is_governed(tried)
    after = spared.asked()
    assert (after["mutate"] - before["mutate"], after["validate"] - before["validate"]) == (1, 0)


def test_templates_are_reviewed_as_ever(spared: Spared) -> None:
    template = {
        "metadata": {"labels": {"app": "x"}},
        "spec": {"containers": [half("m", securityContext={"privileged": True})]},
    }
    spec = {"selector": {"matchLabels": {"app": "x"}}, "template": template}

    with pytest.raises(ApiError, match=r"templates\.bursar\.dev"):
        spared.api.call(
            "POST", "/apis/apps/v1/namespaces/free/deployments", {"metadata": {"name": "x"}, "spec": spec}
        )


def test_sidecars_and_others_see_no_card_also_where_nobody_checks(spared: Spared) -> None:
    labels = {"change": "native-last", "called": BEFORE, "again": "Never"}

    stored, _ = spared.create(gated("meshed", half(), labels=labels))

    assert sees(named(stored)["native-proxy"]) == "void"


def test_one_that_does_not_lead_has_checks_made_and_spares_none(spared: Spared) -> None:
    """Both look; who sees a need acts on it."""
    other = spared.certificates("other", "--checks", "all")

    wait_until(lambda: "--checks=all" in other.log(), "the other to say what it does")
    wait_until(lambda: not spared.is_spared(), "the condition to go")
    assert "event=following" in other.log()
    other.process.kill()
    other.process.wait()
    with spared.beside(AFTER, "Never"):  # so that the leader looks
        pass
    spared.settles(0)


def test_the_lease_of_a_process_that_is_gone_runs_out(spared: Spared) -> None:
    """The last test here: the process is killed, and nobody comes after it."""
    spared.process.process.kill()
    spared.process.process.wait()
    cluster = Cluster(spared.stack.cp.admin_kubeconfig, NAMESPACE)
    assert spared.checks() == 0

    soon = datetime.now(UTC) + timedelta(seconds=4)
    assert cluster.spare(CONFIGURATION, soon)
    wait_until(lambda: spared.checks() == 1, "the lease to run out", within_s=10)

    assert datetime.now(UTC) >= soon - timedelta(seconds=1)
    assert spared.is_spared(), "it is there, and over"
    assert cluster.spare(CONFIGURATION, datetime.now(UTC) + timedelta(minutes=1))
    spared.settles(0)
    version = cluster.checking(CONFIGURATION)[1]
    assert cluster.spare(CONFIGURATION, None)
    spared.settles(1)
    assert not cluster.spare(CONFIGURATION, datetime.now(UTC) + timedelta(minutes=1), version), "it is older"
