"""When a sidecar that no kubelet ends is told that its pod is over: only once nothing else can run again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import worlds
from tests.timekeeper.clocks import iso
from tests.timekeeper.worlds import MINUTE, SECOND, T0, Json, Town, gpu_pod, lease, node
from timekeeper.accounts.pods import LedgerPod, read_pod

ONE_DATABASE = "rules over pods and standings, without statements of their own"

RUNNING = {"running": {"startedAt": iso(T0)}}
DONE, FAILED = (
    {"terminated": {"exitCode": code, "startedAt": iso(T0), "finishedAt": iso(T0 + MINUTE)}}
    for code in (0, 1)
)
BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff"}}
SIDECAR = "bursar-sidecar"


def job(
    policy: str | None = "Never", *, leaving: bool = False, fields: Json | None = None, **states: Json
) -> Json:
    """A pod of these containers, `main` with the GPU, and our sidecar as a plain one beside them."""
    raw = gpu_pod(started_ms=T0)
    named = {"main": RUNNING, **states}
    raw["spec"]["containers"] += [{"name": name} for name in named if name != "main"] + [{"name": SIDECAR}]
    raw["spec"]["containers"][0] |= fields or {}
    if policy is not None:
        raw["spec"]["restartPolicy"] = policy
    if leaving:
        raw["metadata"]["deletionTimestamp"] = iso(T0 + MINUTE)
    raw["status"] |= {"phase": "Running", "containerStatuses": statuses({**named, SIDECAR: RUNNING})}
    return raw


def statuses(states: Json) -> list[Json]:
    return [{"name": name, "state": state} for name, state in states.items() if state is not None]


def is_over(raw: Json) -> bool:
    pod = read_pod(raw)
    assert isinstance(pod, LedgerPod)
    return pod.others_ended


@pytest.mark.parametrize(
    ("raw", "over"),
    [
        (job(main=RUNNING), False),
        (job(main=DONE), True),
        (job(main=FAILED), True),
        (job("OnFailure", main=DONE), True),
        (job("OnFailure", main=FAILED), False),
        (job("OnFailure", main=BACK_OFF), False),
        (job("Always", main=DONE), False),
        (job(None, main=DONE), False),
        (job("Always", leaving=True, main=FAILED), True),
        (job("Always", leaving=True, main=RUNNING), False),
        (job(main=DONE, other=RUNNING), False),
        (job(main=RUNNING, other=DONE), False),
        (job(main=DONE, other=FAILED), True),
        (job("OnFailure", main=DONE, other=FAILED), False),
        (job("Always", main=DONE, fields={"restartPolicy": "Never"}), True),
        (job("Never", main=FAILED, fields={"restartPolicy": "OnFailure"}), False),
        (job("Never", main=FAILED, fields={"restartPolicyRules": [{"action": "Restart"}]}), False),
    ],
    ids=[
        "it runs",
        "it is done",
        "it failed, and is not tried again",
        "done on failure",
        "failed on failure: it is tried again",
        "it waits to be tried again",
        "always: started again",
        "the default is always",
        "the pod is deleted",
        "the pod is deleted, and it ends yet",
        "another runs on",
        "only the other is done",
        "both have ended",
        "the other is tried again",
        "its own policy goes before the pod's",
        "its own policy tries again",
        "rules of its own",
    ],
)
def test_over_means_that_no_other_container_runs_again(raw: Json, over: bool) -> None:
    assert is_over(raw) is over


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_a_container_without_any_status_may_still_start(policy: str) -> None:
    raw = job(policy, main=DONE, other=DONE)
    raw["status"]["containerStatuses"] = statuses({"main": DONE, SIDECAR: RUNNING})

    assert not is_over(raw)


def test_where_there_is_no_other_container_nothing_has_ended() -> None:
    raw = job(main=DONE)
    raw["spec"]["containers"][0]["name"] = SIDECAR

    assert not is_over(raw)


def test_init_containers_keep_no_pod_going() -> None:
    raw = job(main=DONE)
    raw["spec"]["initContainers"] = [{"name": "proxy", "restartPolicy": "Always"}, {"name": "fetch"}]
    raw["status"]["initContainerStatuses"] = statuses({"proxy": RUNNING, "fetch": DONE})

    assert is_over(raw)


odd = st.recursive(
    st.none() | st.integers(-1, 1) | st.sampled_from(["", "Never"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["terminated", "exitCode"]), inner, max_size=2)
    ),
    max_leaves=6,
)


@given(odd | st.lists(st.fixed_dictionaries({"name": st.sampled_from(["main", ""]), "state": odd})), odd)
def test_reading_odd_statuses_never_raises(listed: object, policy: object) -> None:
    raw = job(main=DONE)
    raw["status"]["containerStatuses"] = listed
    raw["spec"]["restartPolicy"] = policy

    assert is_over(raw) in (True, False)


@pytest.fixture
def home(town: Town) -> Town:
    town.begin(("nodes", node()), ("leases", lease(T0)))
    town.clock.turn(SECOND)
    town.change("pods", job("OnFailure", main=RUNNING))
    return town


def told(town: Town, sequence: int) -> object:
    """`over` in the answer to the next heartbeat; None where it is left out."""
    answer = town.beat(gpu_pod(), sequence)
    assert answer.status_code == 200
    return answer.get_json().get("over")


def test_a_sidecar_learns_of_the_end_with_its_next_heartbeat(home: Town) -> None:
    assert told(home, 1) is None

    home.clock.turn(MINUTE)
    home.change("pods", job("OnFailure", main=FAILED))
    assert told(home, 2) is None

    home.change("pods", job("OnFailure", main=DONE))
    assert told(home, 3) is True
    assert told(home, 3) is True  # a repeated post is told the same


def test_a_container_that_was_started_again_takes_the_word_back(home: Town) -> None:
    home.change("pods", job("OnFailure", main=DONE))
    home.change("pods", job("OnFailure", main=RUNNING))

    assert told(home, 1) is None


def test_a_restarted_timekeeper_knows_it_still(home: Town) -> None:
    home.change("pods", job("OnFailure", main=DONE))
    home.start_anew()
    home.serve()

    assert told(home, 1) is True


def test_the_sidecar_of_a_pod_that_has_ended_learns_of_it_too(home: Town) -> None:
    home.clock.turn(MINUTE)
    home.change("pods", gpu_pod(started_ms=T0, ended_ms=T0 + MINUTE))

    assert told(home, 1) is True


def test_being_over_changes_no_charge_for_the_cards_are_held_until_the_pod_ends(home: Town) -> None:
    home.clock.turn(2 * MINUTE)
    home.node_heard()
    home.change("pods", job("OnFailure", main=DONE))
    pending = home.charged()
    ended = gpu_pod(started_ms=T0, ended_ms=T0 + MINUTE)
    home.change("pods", ended)

    assert pending == 1000 * (2 * MINUTE + SECOND)
    assert home.postings() == [(T0, T0 + MINUTE, 1000, "settled")]


def test_a_settled_session_is_not_settled_anew_for_what_its_containers_say(home: Town) -> None:
    home.clock.turn(MINUTE)
    done = worlds.status("Succeeded", main=DONE)
    ended = gpu_pod(started_ms=T0, ended_ms=T0 + MINUTE) | {"status": done}
    ended["spec"]["restartPolicy"] = "Never"
    home.change("pods", ended)
    settled = home.settler.ledger.settled["uid-p"].settled_ms
    with home.store.writing() as connection:
        connection.exec_driver_sql("UPDATE sessions SET others_ended = false")
    home.clock.turn(MINUTE)
    home.resume()

    assert home.settler.ledger.settled["uid-p"].settled_ms == settled
