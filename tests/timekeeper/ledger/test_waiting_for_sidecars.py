"""Pods whose sidecar cannot be pulled: they are charged, people are told, and new pods get none."""

import pytest

from tests.timekeeper.worlds import GPU, HOUR, MINUTE, T0, Json, Town, budgets, gpu_pod, lease, node

BACK_OFF = 'Back-off pulling image "registry/sidecar:1"'
ONE_DATABASE = "decisions about values; test_postings and test_role_findings store the same on both"


def waiting(
    name: str = "p", reason: str = "ImagePullBackOff", percent: int = 50, namespace: str = "team-a"
) -> Json:
    """A pod that was bound at T0, and whose sidecar the kubelet does not start for this reason."""
    raw = gpu_pod(name, percent=percent, bound_ms=T0, phase="Pending", namespace=namespace)
    said = {"waiting": {"reason": reason, "message": BACK_OFF}}
    raw["status"]["initContainerStatuses"] = [{"name": "bursar-sidecar", "started": False, "state": said}]
    return raw


@pytest.fixture
def private(town: Town) -> Town:
    town.begin(
        ("nodes", node()),
        ("leases", lease(T0)),
        ("configmaps", budgets(team_a="gpuHours: 100", team_b="gpuHours: 1\nsidecar: 'off'")),
    )
    return town


def said(town: Town) -> list[tuple[str, str]]:
    rows = town.get("/v1/findings").get_json()["findings"]
    return [(row["code"], row["sentence"]) for row in rows if row["code"] == "sidecar-waits"]


def sidecar(town: Town, namespace: str = "team-a") -> str | None:
    document = town.get("/v1/standings").get_json()
    found: str | None = document["namespaces"].get(namespace, document["default"]).get("sidecar")
    return found


def test_who_waits_for_a_sidecar_is_charged_and_named_in_the_kubelets_words(private: Town) -> None:
    private.change("pods", waiting())
    private.advance(15 * MINUTE)

    # half a card for a quarter of an hour
    assert said(private) == [
        (
            "sidecar-waits",
            "1 pod waits for the sidecar, for 0.125 GPU-hours by now: team-a/p; its kubelet says:"
            f" ImagePullBackOff: {BACK_OFF}",
        )
    ]
    assert private.charged() == GPU * 15 * MINUTE // 2
    private.change("pods", waiting("q", "CreateContainerConfigError", 100))
    private.advance(45 * MINUTE)
    assert said(private)[0][1].startswith(
        "2 pods wait for the sidecar, for 1.5 GPU-hours by now: team-a/p, t"
    )
    private.change("pods", gpu_pod("q", bound_ms=T0, started_ms=T0 + HOUR))
    private.change("pods", waiting(), deleted=True)
    private.advance(MINUTE)
    assert said(private) == []


def test_new_pods_get_no_sidecar_after_five_minutes_until_no_pod_waits(private: Town) -> None:
    private.change("pods", waiting())
    private.advance(5 * MINUTE - 1)
    assert sidecar(private) is None
    private.advance(1_001)
    assert sidecar(private) == "waits"
    private.change("pods", waiting(reason="ErrImagePull"))
    private.advance(1_000)
    assert sidecar(private) == "waits"
    private.change("pods", gpu_pod(percent=50, bound_ms=T0, started_ms=T0 + 6 * MINUTE))
    private.advance(1_000)
    assert sidecar(private) is None


def test_a_namespace_without_an_entry_is_marked_and_one_without_sidecars_is_not(private: Town) -> None:
    for name, namespace in (("b", "team-b"), ("c", "team-c")):
        private.change("pods", waiting(name, namespace=namespace))
    private.advance(6 * MINUTE)

    assert [sidecar(private, f"team-{name}") for name in "abc"] == [None, "off", "waits"]
    private.restart()
    private.advance(1_000)
    assert sidecar(private, "team-c") == "waits"


@pytest.mark.parametrize("reason", ["PodInitializing", "ContainerCreating"])
def test_a_pod_that_only_starts_waits_for_nothing_of_ours(private: Town, reason: str) -> None:
    private.change("pods", waiting(reason=reason))
    private.advance(HOUR)

    assert (said(private), sidecar(private)) == ([], None)


def test_a_sidecar_that_ends_once_its_pod_runs_keeps_nothing_from_starting(private: Town) -> None:
    raw = waiting(reason="CrashLoopBackOff")
    raw["status"]["phase"] = "Running"
    private.change("pods", raw)
    private.advance(HOUR)

    assert (said(private), sidecar(private)) == ([], None)
