"""What counts as having run: proof before estimates, in both directions, and nothing twice."""

import json

import pytest

from tests import worlds
from tests.timekeeper.clocks import iso
from tests.timekeeper.worlds import (
    DAY,
    GPU,
    HOUR,
    MINUTE,
    SECOND,
    T0,
    Json,
    Town,
    budgets,
    gpu_pod,
    lease,
    node,
)
from tests.worlds import terminated
from timekeeper.settler.cluster.cluster_state import StreamAlive, WatchUpdate

ONE_DATABASE = "decisions about values; test_postings, test_heartbeats and the machine store the same on both"

START = T0 + 2 * SECOND


@pytest.fixture
def running(town: Town) -> Town:
    """A whole card, running since two seconds after its binding, on a node that is heard."""
    town.begin(
        ("nodes", node()),
        ("leases", lease(T0)),
        ("configmaps", budgets(team_a="gpuHours: 100\nperiod: month")),
    )
    town.clock.turn(2 * SECOND)
    town.change("pods", POD)
    return town


POD = gpu_pod(started_ms=START)


def test_a_repeated_heartbeat_charges_nothing_more(running: Town) -> None:
    running.clock.turn(10 * SECOND)
    running.beat(POD, 1)
    owed = running.budget()["pending"]

    running.clock.turn(50 * SECOND)
    answer = running.beat(POD, 1)

    assert answer.status_code == 200
    assert running.budget()["pending"] == owed == GPU * 10 * SECOND


def test_a_heartbeat_overtaken_by_a_later_one_charges_nothing_more(running: Town) -> None:
    running.clock.turn(10 * SECOND)
    running.beat(POD, 2)
    running.clock.turn(5 * SECOND)

    assert running.beat(POD, 1).status_code == 200
    assert running.budget()["pending"] == GPU * 10 * SECOND


def test_spooled_heartbeats_are_dated_by_their_age(running: Town) -> None:
    running.clock.turn(HOUR)

    running.beat(POD, 1, 50 * MINUTE, 40 * MINUTE)

    assert running.budget()["pending"] == GPU * 20 * MINUTE


def test_a_repeat_from_an_earlier_run_of_the_sidecar_charges_nothing_more(running: Town) -> None:
    running.clock.turn(10 * SECOND)
    running.beat(POD, 7, boot="first")
    running.clock.turn(10 * SECOND)
    running.beat(POD, 1, boot="second")
    running.clock.turn(10 * SECOND)

    running.beat(POD, 7, boot="first")

    assert running.budget()["pending"] == GPU * 20 * SECOND


def test_a_heartbeat_older_than_the_session_charges_nothing_before_its_start(running: Town) -> None:
    running.clock.turn(SECOND)

    running.beat(POD, 1, DAY)

    assert running.budget()["pending"] == 0


def test_a_server_clock_turned_back_charges_nothing_negative_and_closes_nothing(running: Town) -> None:
    running.clock.turn(10 * MINUTE)
    running.beat(POD, 1)

    running.clock.turn(-HOUR)
    running.beat(POD, 2)
    running.tick()

    assert running.budget()["pending"] == 0
    running.advance(HOUR + MINUTE, heard=False)
    assert running.budget()["pending"] == GPU * 10 * MINUTE


def test_a_heartbeat_of_a_pod_without_a_session_is_kept_by_its_sidecar(running: Town) -> None:
    stranger = gpu_pod("stranger")

    answer = running.beat(stranger, 1)

    assert (answer.status_code, answer.content_type) == (404, "application/problem+json")


def test_many_runs_of_a_sidecar_leave_a_bounded_number_of_rows(running: Town) -> None:
    from sqlalchemy import select

    from timekeeper.store import heartbeats as beats
    from timekeeper.store.engine.schema import HEARTBEATS

    for run in range(30):
        running.clock.turn(SECOND)
        running.beat(POD, 1, boot=f"run-{run}")

    with running.store.reading() as connection:
        assert len(connection.execute(select(HEARTBEATS)).all()) == beats.MAX_BOOTS
    assert running.budget()["pending"] == GPU * 30 * SECOND


def test_a_node_that_reports_is_evidence_for_its_pods_up_to_its_lease(running: Town) -> None:
    running.clock.turn(MINUTE)
    running.hear("leases", lease(T0 + 40 * SECOND))
    running.quiet()
    running.tick()

    assert running.budget()["pending"] == GPU * 38 * SECOND


def test_a_lease_from_a_fast_clock_counts_only_up_to_the_last_report_of_the_pods(running: Town) -> None:
    running.clock.turn(MINUTE)
    running.quiet()
    running.clock.turn(MINUTE)
    running.change("leases", lease(T0 + DAY))

    assert running.budget()["pending"] == GPU * MINUTE


def test_silence_costs_nothing_and_the_gap_is_charged_when_the_node_comes_back(running: Town) -> None:
    running.advance(MINUTE)
    running.advance(2 * HOUR, heard=False)
    assert running.budget()["pending"] + running.budget()["posted"] == GPU * MINUTE

    running.advance()

    assert running.budget()["pending"] + running.budget()["posted"] == GPU * (2 * HOUR + MINUTE)


def test_a_silent_session_is_posted_after_settle_after_and_stays_open(running: Town) -> None:
    running.advance(MINUTE)
    running.advance(HOUR, heard=False)
    assert running.postings() == [(START, START + MINUTE, GPU, "settled")]

    end = START + 30 * MINUTE
    running.change("pods", gpu_pod(started_ms=START, ended_ms=end))

    assert running.postings() == [
        (START, START + MINUTE, GPU, "settled"),
        (START + MINUTE, end, GPU, "settled"),
    ]


def test_proof_takes_back_what_was_posted_too_much(running: Town) -> None:
    running.advance(MINUTE)
    running.advance(HOUR, heard=False)

    end = START + 20 * SECOND
    running.change("pods", gpu_pod(started_ms=START, ended_ms=end))

    assert running.postings()[-1] == (end, START + MINUTE, -GPU, "correction")
    assert running.charged() == running.budget()["posted"] == GPU * 20 * SECOND


def test_proof_replaces_a_heartbeat_that_says_more(running: Town) -> None:
    running.clock.turn(HOUR)
    running.beat(POD, 1)

    running.change("pods", gpu_pod(started_ms=START, ended_ms=START + MINUTE))
    running.beat(POD, 2)

    assert running.charged() == GPU * MINUTE


def test_a_restart_leaves_no_gap(running: Town) -> None:
    """Through a crash and its back-off the cards are held: the earliest start ever told counts."""
    again = gpu_pod(started_ms=START + 10 * MINUTE)
    again["status"]["containerStatuses"][0]["lastState"] = terminated(
        iso(START + 5 * MINUTE), iso(START + 6 * MINUTE)
    )
    running.clock.turn(20 * MINUTE)
    running.hear("pods", again)
    running.advance()

    assert running.budget()["pending"] == GPU * 20 * MINUTE


def test_a_start_error_of_1970_is_no_start_and_the_binding_counts(running: Town) -> None:
    broken = gpu_pod("broken", bound_ms=running.clock())
    broken["status"]["phase"] = "Pending"
    state = {"terminated": {"startedAt": "1970-01-01T00:00:00Z", "finishedAt": iso(running.clock())}}
    broken["status"]["containerStatuses"] = [{"name": "main", "state": {"waiting": {}}, "lastState": state}]
    running.hear("pods", broken)
    running.advance(MINUTE)

    assert running.charged() == 2 * GPU * MINUTE  # the other pod's as well


def test_a_pod_that_never_starts_is_charged_from_its_binding(running: Town) -> None:
    running.hear("pods", gpu_pod("stuck", namespace="team-b", card=1, bound_ms=T0))
    running.clock.turn(9 * MINUTE)
    running.node_heard()
    running.tick()

    assert running.charged("team-b") == GPU * (9 * MINUTE + 2 * SECOND)


def test_a_pod_that_ended_without_having_run_held_its_cards_until_its_end_was_reported(running: Town) -> None:
    running.hear("pods", gpu_pod("rejected", namespace="team-b", card=1, phase="Failed"))
    running.advance(HOUR)

    assert running.postings("uid-rejected") == [(T0, T0 + 2 * SECOND, GPU, "settled")]


UNKNOWN_END: Json = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}


@pytest.mark.parametrize("is_settled", [False, True], ids=["pending", "posted"])
def test_an_end_without_a_time_refunds_nothing_that_was_watched(running: Town, is_settled: bool) -> None:
    """The container had crashed and was started again; its last end is unknown, and an earlier one proves
    nothing."""
    running.clock.turn(HOUR)
    running.node_heard()
    running.tick()
    if is_settled:
        running.clock.turn(HOUR)
        running.tick()
    lost = gpu_pod(started_ms=START, phase="Failed")
    ended = terminated(iso(START), iso(START + SECOND))
    lost["status"]["containerStatuses"] = [{"name": "main", "state": UNKNOWN_END, "lastState": ended}]
    running.hear("pods", lost)
    running.tick()
    running.clock.turn(2 * HOUR)
    running.tick()

    assert running.charged() == GPU * (2 * HOUR if is_settled else HOUR)
    known = gpu_pod(started_ms=START, ended_ms=START + MINUTE)
    running.hear("pods", known)
    running.tick()
    settled_twice = running.charged()
    assert settled_twice == GPU * MINUTE


def test_a_pod_is_charged_until_its_last_container_ends_though_it_uses_no_card(running: Town) -> None:
    """The GPU container ends after five seconds, an idle one after thirty."""
    body = gpu_pod("both", namespace="team-b", card=1, bound_ms=START)
    body["spec"]["containers"].append(worlds.container("idle"))
    main = ran(START, START + 5 * SECOND)
    body["status"] |= worlds.status("Running", main=main, idle=ran(START))
    running.hear("pods", body)
    running.clock.turn(30 * SECOND)
    running.node_heard()
    running.tick()
    assert running.charged("team-b") == GPU * 30 * SECOND
    body["status"] |= worlds.status("Succeeded", main=main, idle=ran(START, START + 30 * SECOND))
    running.hear("pods", body)
    running.tick()

    assert running.postings("uid-both") == [(START, START + 30 * SECOND, GPU, "settled")]


def test_a_finalizer_takes_nothing_from_what_was_witnessed_after_the_deadline(running: Town) -> None:
    running.clock.turn(MINUTE)
    leaving = gpu_pod(started_ms=START)
    leaving["metadata"] |= {"deletionTimestamp": iso(running.clock()), "deletionGracePeriodSeconds": 0}
    running.hear("pods", leaving)
    running.clock.turn(20 * SECOND)
    running.node_heard()
    running.tick()
    running.hear("pods", leaving, deleted=True)
    running.tick()
    running.clock.turn(2 * HOUR)
    running.tick()

    assert running.postings() == [(START, START + 110 * SECOND, GPU, "settled")]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_second_deletion_does_not_shorten_the_grace_of_the_first(running: Town, is_restarted: bool) -> None:
    for seconds in (300, 0):
        leaving = gpu_pod(started_ms=START)
        leaving["metadata"]["deletionGracePeriodSeconds"] = seconds
        leaving["metadata"]["deletionTimestamp"] = iso(running.clock() + seconds * SECOND)
        running.hear("pods", leaving)
        running.tick()
        if is_restarted and seconds:
            running.restart()
    running.node_heard()
    running.tick()
    running.hear("pods", leaving, deleted=True)
    running.tick()
    running.clock.turn(2 * HOUR)
    running.tick()

    assert running.postings() == [(START, START + 300 * SECOND, GPU, "settled")]


def test_a_pod_that_never_ran_pays_for_holding(running: Town) -> None:
    bound = running.clock()
    held = gpu_pod("held", namespace="team-b", card=1, bound_ms=bound)
    running.change("pods", held)
    running.advance(MINUTE)
    running.change("pods", gpu_pod("held", namespace="team-b", card=1, bound_ms=bound, phase="Failed"))
    running.advance(HOUR)

    assert running.postings("uid-held") == [(bound, bound + MINUTE, GPU, "settled")]


def test_a_session_keeps_the_terms_it_was_opened_under(running: Town) -> None:
    running.hear("configmaps", budgets(_settings="weights: {A100: 7}"))
    running.advance(MINUTE)

    assert running.charged() == GPU * MINUTE


def test_a_pod_that_vanishes_goes_on_for_its_grace_period(running: Town) -> None:
    running.clock.turn(MINUTE)
    running.node_heard()
    running.change("pods", POD, deleted=True)
    running.advance(10 * SECOND, heard=False)
    assert running.charged() == GPU * 70 * SECOND

    running.advance(2 * HOUR, heard=False)

    assert running.postings() == [(START, START + 90 * SECOND, GPU, "settled")]


def test_no_grace_period_is_longer_than_the_settings_allow(running: Town) -> None:
    patient = gpu_pod("patient", namespace="team-b", card=1, started_ms=START, grace_s=86_400)
    running.change("pods", patient)
    running.clock.turn(MINUTE)
    running.node_heard()
    running.change("pods", patient, deleted=True)
    running.advance(2 * HOUR, heard=False)

    assert running.charged("team-b") == GPU * 11 * MINUTE


def test_a_pod_deleted_with_terminal_statuses_is_charged_by_them(running: Town) -> None:
    running.clock.turn(HOUR)
    running.node_heard()
    running.change("pods", gpu_pod(started_ms=START, ended_ms=START + MINUTE), deleted=True)

    assert running.postings() == [(START, START + MINUTE, GPU, "settled")]


def test_a_pod_that_vanishes_from_a_silent_node_is_charged_through_its_grace(running: Town) -> None:
    """Its cards were held meanwhile. While the node is silent, the charge stops at the last evidence."""
    running.clock.turn(MINUTE)
    running.node_heard()
    running.tick()
    running.clock.turn(20 * MINUTE)
    running.tick()
    assert running.charged() == GPU * MINUTE
    running.hear("pods", POD, deleted=True)
    running.tick()
    running.clock.turn(2 * HOUR)
    running.tick()

    assert running.postings() == [(START, START + 21 * MINUTE + 30 * SECOND, GPU, "settled")]


def test_a_pod_that_vanished_while_we_were_away_has_the_longest_grace_after_its_last_evidence(
    running: Town,
) -> None:
    running.clock.turn(MINUTE)
    running.node_heard()
    running.tick()
    running.hear("pods", POD, deleted=True, unheard=True)
    running.clock.turn(3 * HOUR)
    running.hear("leases", lease(running.clock()), unheard=True)

    running.resume()
    running.advance(2 * HOUR, heard=False)

    assert running.postings() == [(START, START + 11 * MINUTE, GPU, "settled")]


def test_a_pod_missing_from_a_new_list_has_the_longest_grace_after_its_last_evidence(running: Town) -> None:
    """A watch that expired is listed anew: what went in between went unseen."""
    running.advance(MINUTE)
    running.clock.turn(5 * MINUTE)
    running.hear("pods", POD, deleted=True, unheard=True)
    running.list_all()
    running.tick()
    running.advance(2 * HOUR, heard=False)

    assert running.charged() == GPU * 11 * MINUTE


def test_a_pod_that_ended_while_we_were_away_is_charged_by_its_statuses(running: Town) -> None:
    end = START + 7 * MINUTE
    running.hear("pods", gpu_pod(started_ms=START, ended_ms=end), unheard=True)
    running.clock.turn(HOUR)

    running.resume()

    assert running.postings() == [(START, end, GPU, "settled")]


def test_a_pod_whose_whole_life_we_missed_is_charged_by_its_statuses(running: Town) -> None:
    end = START + 7 * MINUTE
    whole = gpu_pod("whole", namespace="team-b", card=1, started_ms=START, ended_ms=end)
    running.hear("pods", whole, unheard=True)
    running.clock.turn(HOUR)

    running.resume()

    assert running.charged("team-b") == GPU * 7 * MINUTE


def test_a_settled_pod_that_is_listed_again_is_charged_nothing_more(running: Town) -> None:
    running.change("pods", gpu_pod(started_ms=START, ended_ms=START + MINUTE))
    running.clock.turn(HOUR)

    for _ in range(3):
        running.resume()

    assert running.postings() == [(START, START + MINUTE, GPU, "settled")]


def test_the_gap_of_a_restart_is_charged_from_the_same_start(running: Town) -> None:
    running.clock.turn(HOUR)
    running.hear("leases", lease(running.clock()), unheard=True)

    running.resume()

    assert running.budget()["pending"] == GPU * HOUR


def test_a_name_that_is_used_again_is_another_session(running: Town) -> None:
    running.hear("pods", gpu_pod(started_ms=START, ended_ms=START + MINUTE), deleted=True)
    second = gpu_pod(started_ms=START + HOUR, ended_ms=START + HOUR + MINUTE, bound_ms=START + HOUR)
    second["metadata"]["uid"] = "uid-second"
    running.clock.turn(2 * HOUR)
    running.change("pods", second)

    assert running.postings() == [(START, START + MINUTE, GPU, "settled")]
    assert running.postings("uid-second") == [(START + HOUR, START + HOUR + MINUTE, GPU, "settled")]


def test_without_a_placement_a_pod_is_charged_by_its_request(running: Town) -> None:
    """Another scheduler bound it: whole cards at the weight of the node's model."""
    running.hear("nodes", node("n2", model="H100"))
    running.change("configmaps", budgets(_settings="weights: {H100: 2.5}"))
    bare = gpu_pod("bare", namespace="team-b", node="n2", started_ms=START, ended_ms=START + MINUTE)
    del bare["metadata"]["annotations"]["bursar.dev/devices"]
    bare["spec"]["schedulerName"] = "default-scheduler"
    running.change("pods", bare)

    assert running.postings("uid-bare") == [(START, START + MINUTE, 2500, "settled")]


def test_a_forged_placement_changes_no_charge(running: Town) -> None:
    """A placement that is not the request's is not believed; the session waits a little for the inventory,
    then is charged by its request."""
    forged = gpu_pod(
        "forged", namespace="team-b", percent=80, card=1, started_ms=START, ended_ms=START + MINUTE
    )
    small = gpu_pod("small", percent=1, card=1)
    forged["metadata"]["annotations"] = small["metadata"]["annotations"]
    running.change("pods", forged)
    assert running.postings("uid-forged") == []

    running.advance(6 * SECOND, heard=False)

    assert running.postings("uid-forged") == [(START, START + MINUTE, 800, "settled")]


def test_a_pod_that_arrives_before_its_node_waits_for_the_nodes_cards(running: Town) -> None:
    running.hear("configmaps", budgets(_settings="weights: {H100: 2}"))
    early = gpu_pod(
        "early", namespace="team-b", node="n9", percent=50, started_ms=START, ended_ms=START + MINUTE
    )
    running.change("pods", early)
    running.change("nodes", node("n9", model="H100"))

    assert running.postings("uid-early") == [(START, START + MINUTE, 1000, "settled")]


def test_what_a_user_annotates_later_hides_no_pod(running: Town) -> None:
    end = START + MINUTE
    running.change(
        "pods", gpu_pod(started_ms=START, ended_ms=end, annotations={"bursar.dev/policy": "nonsense"})
    )

    assert running.postings() == [(START, end, GPU, "settled")]


def test_a_pod_that_cannot_be_charged_is_reported(running: Town, capfd: pytest.CaptureFixture[str]) -> None:
    bad = gpu_pod("bad", started_ms=START)
    bad["spec"]["containers"][0]["resources"]["limits"] = {"bursar.dev/gpu-percent": "150"}
    running.change("pods", bad)

    assert "event=pod-not-charged namespace=team-a pod=bad" in capfd.readouterr().err


def test_pods_without_a_request_only_show_that_the_watch_is_alive(running: Town) -> None:
    plain = gpu_pod("plain")
    plain["spec"]["containers"][0]["resources"] = {}
    running.clock.turn(MINUTE)
    running.hear("leases", lease(running.clock()))
    running.change("pods", plain)

    assert running.settler.cluster.pods.keys() == {"uid-p"}
    assert running.charged() == GPU * MINUTE


def test_nothing_is_concluded_before_everything_arrived_once(running: Town) -> None:
    """Before the list of pods is there, a session without a pod has lost nothing."""
    running.start_anew()
    running.advance(MINUTE, heard=False)

    answer = running.get("/readyz")
    assert answer.status_code == 503
    assert "waiting for pods, nodes" in answer.get_data(as_text=True)
    assert running.settler.ledger.sessions["uid-p"].vanished_ms is None

    running.list_all()
    running.tick()
    assert running.get("/readyz").status_code == 200


def test_a_watch_that_is_only_quiet_moves_the_watermark_of_pods_alone(town: Town) -> None:
    cluster = town.settler.cluster
    cluster.apply(WatchUpdate("nodes", T0, StreamAlive()))
    assert cluster.pods_current_ms == 0

    cluster.apply(WatchUpdate("pods", T0, StreamAlive()))
    assert cluster.pods_current_ms == T0


# What a kubelet's statuses say.


def crew(statuses: Json, init_statuses: Json | None = None, phase: str = "Running") -> Json:
    """A pod of team-b on card 1 with an init container, a native sidecar and two others, each of which asks
    for a quarter of it; statuses by container."""
    quarter = {"uuid": "GPU-1", "index": 1, "share_milli": 250, "memory_mib": 4_000}
    names = ("setup", "cache", "main", "helper")
    given = {"version": 1, "containers": {name: [quarter] for name in names}}
    setup, cache, main, helper = (worlds.container(name, gpu_percent="25") for name in names)
    body = gpu_pod("crew", namespace="team-b", card=1)
    body["metadata"]["annotations"]["bursar.dev/devices"] = json.dumps(given)
    body["spec"] |= {
        "initContainers": [setup, cache | {"restartPolicy": "Always"}],
        "containers": [main, helper],
    }
    body["status"] |= worlds.status(phase, **statuses)
    body["status"]["initContainerStatuses"] = worlds.status(phase, **(init_statuses or {}))[
        "containerStatuses"
    ]
    return body


WAITING: Json = {"waiting": {"reason": "PodInitializing"}}


def ran(from_ms: int, to_ms: int | None = None) -> Json:
    return worlds.running(iso(from_ms)) if to_ms is None else terminated(iso(from_ms), iso(to_ms))


def test_cards_that_only_an_init_container_uses_are_charged(running: Town) -> None:
    running.hear(
        "pods", crew({"main": WAITING, "helper": WAITING}, {"setup": ran(START), "cache": WAITING}, "Pending")
    )
    running.advance(MINUTE)

    # the init container ends before the others begin: three quarters are held at most
    assert running.charged("team-b") == 750 * (MINUTE + 2 * SECOND)


def test_a_native_sidecar_with_a_gpu_ends_the_session_last(running: Town) -> None:
    minute = [START + n * MINUTE for n in range(5)]
    main, helper = ran(minute[1], minute[2]), ran(minute[1], minute[3])
    running.change(
        "pods",
        crew(
            {"main": main, "helper": helper},
            {"setup": ran(minute[0], minute[1]), "cache": ran(minute[1], minute[4])},
            "Succeeded",
        ),
    )

    assert running.postings("uid-crew") == [(T0, minute[4], 750, "settled")]


def test_while_one_of_several_gpu_containers_runs_the_cards_are_held(running: Town) -> None:
    """Also where the phase is terminal already, as a node's lifecycle controller sets it from afar."""
    for phase in ("Running", "Failed"):
        main, helper = ran(START, START + SECOND), ran(START)
        running.hear("pods", crew({"main": main, "helper": helper}, phase=phase))
        running.advance(MINUTE)

    assert running.charged("team-b") == 750 * (2 * MINUTE + 2 * SECOND)
    assert running.postings("uid-crew") == []


def test_back_off_between_crashes_is_charged_for_the_cards_are_held(running: Town) -> None:
    crashing = gpu_pod(started_ms=START)
    crashing["status"]["containerStatuses"] = [
        {
            "name": "main",
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": terminated(iso(START + 50 * SECOND), iso(START + 51 * SECOND)),
        }
    ]
    running.hear("pods", crashing)
    running.advance(5 * MINUTE)

    assert running.budget()["pending"] == GPU * 5 * MINUTE


def test_a_start_that_no_watch_repeats_to_a_restarted_settler_stays_known(running: Town) -> None:
    """After two restarts of a container its status no longer tells the first."""
    running.clock.turn(10 * MINUTE)
    later = gpu_pod(started_ms=START + 9 * MINUTE)
    later["status"]["containerStatuses"][0]["lastState"] = terminated(
        iso(START + 8 * MINUTE), iso(START + 8 * MINUTE + SECOND)
    )
    running.hear("pods", later, unheard=True)
    running.restart()
    running.advance()

    assert running.budget()["pending"] == GPU * 10 * MINUTE


@pytest.mark.parametrize("reason", ["ErrImagePull", "PodInitializing"], ids=["bogus image", "endless init"])
def test_who_holds_cards_without_ever_starting_pays_to_the_end(running: Town, reason: str) -> None:
    """No timestamp of the kubelet's tells of it: the binding does, and deleting the pod refunds nothing."""
    stuck = gpu_pod("stuck", namespace="team-b", card=1, bound_ms=T0)
    stuck["status"]["containerStatuses"] = [{"name": "main", "state": {"waiting": {"reason": reason}}}]
    running.hear("pods", stuck)
    running.advance(10 * HOUR)
    never = {"terminated": {"reason": "ContainerStatusUnknown", "exitCode": 137}}
    stuck["status"] |= {"phase": "Failed", "containerStatuses": [{"name": "main", "state": never}]}
    running.hear("pods", stuck)
    running.change("pods", stuck, deleted=True)
    running.advance(2 * HOUR, heard=False)

    due = T0, T0 + 10 * HOUR + 2 * SECOND
    assert running.postings("uid-stuck") == [(*due, GPU, "settled")]


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
        {"phase": "Failed", "reason": "NodeLost"},
    ],
)
def test_an_end_without_a_time_is_charged_to_the_last_evidence(running: Town, status: Json) -> None:
    running.advance(MINUTE)
    running.clock.turn(20 * SECOND)
    running.beat(POD, 1)
    running.change("pods", {**POD, "status": status})
    running.advance(2 * HOUR)

    assert running.postings() == [(START, START + 80 * SECOND, GPU, "settled")]


def test_a_heartbeat_after_an_end_without_a_time_counts_also_after_a_restart(running: Town) -> None:
    """The kubelet has refused the pod, whose containers were still ending; later its object is deleted."""
    running.advance(MINUTE)
    failed = {**POD, "status": {"phase": "Failed", "reason": "NodeAffinity"}}
    running.change("pods", failed)
    running.clock.turn(20 * SECOND)
    running.beat(POD, 1)
    running.advance(2 * HOUR)
    settled = running.postings()
    assert settled == [(START, START + 80 * SECOND, GPU, "settled")]

    running.restart()
    deletion = {"deletionTimestamp": iso(running.clock()), "deletionGracePeriodSeconds": 30}
    running.change("pods", {**failed, "metadata": {**failed["metadata"], **deletion}})
    running.change("pods", failed, deleted=True)
    running.advance(2 * HOUR)

    assert running.postings() == settled


@pytest.mark.parametrize(("phase", "code"), [("Succeeded", 0), ("Failed", 1), ("Failed", 137)])
def test_completed_failed_and_killed_pods_are_charged_by_the_kubelets_timestamps(
    running: Town, phase: str, code: int
) -> None:
    ended = gpu_pod(started_ms=START, ended_ms=START + MINUTE, phase=phase)
    ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] = code
    running.clock.turn(HOUR)
    running.node_heard()
    running.change("pods", ended)

    assert running.postings() == [(START, START + MINUTE, GPU, "settled")]


def test_an_evicted_pod_pays_until_its_containers_have_ended(running: Town) -> None:
    """An eviction only asks for the end, as a deletion does: until then the cards are held."""
    leaving = gpu_pod(started_ms=START)
    leaving["metadata"]["deletionTimestamp"] = iso(START + 30 * SECOND)
    leaving["status"]["conditions"].append(
        {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    )
    running.hear("pods", leaving)
    running.advance(20 * SECOND)
    assert running.budget()["pending"] == GPU * 20 * SECOND

    running.change("pods", gpu_pod(started_ms=START, ended_ms=START + 25 * SECOND, phase="Failed"))

    assert running.postings() == [(START, START + 25 * SECOND, GPU, "settled")]


# Nodes.


def test_a_rebooted_nodes_pods_are_charged_through_the_reboot(running: Town) -> None:
    """The pod object stays and holds its cards; its containers start again."""
    running.advance(MINUTE)
    running.hear("leases", lease(START + MINUTE), deleted=True)
    running.advance(10 * MINUTE, heard=False)
    assert running.charged() == GPU * MINUTE

    again = gpu_pod(started_ms=START + 9 * MINUTE)
    again["status"]["containerStatuses"][0]["lastState"] = {
        "terminated": {"reason": "ContainerStatusUnknown", "exitCode": 137}
    }
    running.hear("pods", again)
    running.advance()

    assert running.charged() == GPU * 11 * MINUTE


def test_a_removed_nodes_pods_are_charged_through_their_grace(running: Town) -> None:
    running.clock.turn(MINUTE)
    running.node_heard()
    running.tick()
    running.clock.turn(10 * MINUTE)
    running.hear("leases", lease(START), deleted=True)
    running.hear("nodes", node(), deleted=True)
    running.change("pods", POD, deleted=True)
    running.advance(2 * HOUR, heard=False)

    assert running.postings() == [(START, START + 11 * MINUTE + 30 * SECOND, GPU, "settled")]


def test_a_node_that_is_not_ready_and_comes_back_without_the_pod_is_charged_for_the_silence(
    running: Town,
) -> None:
    running.clock.turn(MINUTE)
    running.beat(POD, 1)
    running.tick()
    running.clock.turn(30 * MINUTE)
    running.hear("pods", POD, deleted=True)
    running.hear("leases", lease(running.clock()))
    running.quiet()
    running.tick()
    running.advance(2 * HOUR)

    assert running.postings() == [(START, START + 31 * MINUTE + 30 * SECOND, GPU, "settled")]


# Clocks.


def test_a_start_from_a_fast_clock_is_charged_once_it_has_come(running: Town) -> None:
    early = gpu_pod("early", namespace="team-b", card=1, started_ms=running.clock() + MINUTE)
    running.hear("pods", early)
    running.advance(30 * SECOND)
    assert running.charged("team-b") == 0

    running.advance(40 * SECOND)

    assert running.charged("team-b") == GPU * 10 * SECOND


def test_an_end_before_its_start_costs_nothing(running: Town) -> None:
    running.change("pods", gpu_pod(started_ms=START, ended_ms=START - MINUTE))

    assert running.charged() == 0


def test_ages_count_and_no_clock_of_the_pods(running: Town) -> None:
    """A sidecar's clock may be years off: what it sends is how long ago."""
    running.clock.turn(HOUR)
    running.beat(POD, 1, 30 * MINUTE)
    running.clock.turn(MINUTE)
    running.beat(POD, 2, 40 * MINUTE)

    assert running.budget()["pending"] == GPU * 30 * MINUTE


def test_heartbeats_of_a_pod_that_is_gone_change_nothing_and_say_so(running: Town) -> None:
    ended = gpu_pod(started_ms=START, ended_ms=START + MINUTE)
    running.hear("pods", ended, deleted=True)
    running.advance(HOUR, heard=False)

    answer = running.beat(POD, 1)
    running.tick()

    assert (answer.status_code, answer.get_json()["over"]) == (200, True)
    assert running.postings() == [(START, START + MINUTE, GPU, "settled")]
    assert running.charged() == GPU * MINUTE


# Terms.


@pytest.mark.parametrize(
    ("charge_by", "rate"), [("dominant", 1_500), ("compute", 750), ("memory", 1_500), ("mean", 1_125)]
)
def test_a_rate_is_fixed_at_bind_by_what_is_charged_and_the_models_weight(
    running: Town, charge_by: str, rate: int
) -> None:
    """A quarter of a card's compute and half of its memory, on a model of weight 3."""
    running.hear("nodes", node("n2", model="H100"))
    running.change("configmaps", budgets(_settings=f"chargeBy: {charge_by}\nweights: {{H100: 3}}"))
    body = gpu_pod("uneven", namespace="team-b", node="n2", started_ms=START)
    limits = {"bursar.dev/gpu-percent": "25", "bursar.dev/gpu-memory": "8000"}
    body["spec"]["containers"][0]["resources"]["limits"] = limits
    slice_ = {"uuid": "GPU-0", "index": 0, "share_milli": 250, "memory_mib": 8_000}
    body["metadata"]["annotations"]["bursar.dev/devices"] = json.dumps(
        {"version": 1, "containers": {"main": [slice_]}}
    )
    running.change("pods", body)

    running.hear("configmaps", budgets(_settings="weights: {H100: 1}\nchargeBy: dominant"))
    running.hear("nodes", node("n2", model="T4"))
    ended = {**body, "status": worlds.status("Succeeded", main=ran(START, START + MINUTE))}
    running.change("pods", ended)

    assert running.postings("uid-uneven") == [(START, START + MINUTE, rate, "settled")]


HOG = {"cpu": "62", "memory": "1Gi"}
BY_HOST = budgets(team_a="gpuHours: 100", team_b="gpuHours: 100", _settings="chargeBy: dominant-host")


def hog(name: str, **times: object) -> Json:
    """One per cent of a card, and 62 CPUs."""
    body = gpu_pod(name, namespace="team-b", percent=1, **times)  # type: ignore[arg-type]
    body["spec"]["containers"][0]["resources"]["requests"] = HOG
    return body


def roomy(cpu: str) -> Json:
    """A node with two cards and this CPU."""
    return node() | {"status": {"allocatable": {"cpu": cpu, "memory": "512Gi"}}}


def test_a_pod_that_takes_the_nodes_cpu_costs_the_cards_that_it_keeps_others_from(running: Town) -> None:
    """Its rate is fixed: neither the node nor the pod's own request changes it later, nor another settler."""
    running.change("nodes", roomy("64"))
    running.change("configmaps", BY_HOST)
    running.change("pods", hog("hog", started_ms=START))
    running.change("pods", gpu_pod("small", namespace="team-b", percent=1, card=1, started_ms=START))

    running.change("nodes", roomy("620"))
    running.start_anew()
    running.list_all()
    ended = hog("hog", started_ms=START, ended_ms=START + MINUTE)
    ended["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1"}
    running.change("pods", ended)
    running.change(
        "pods",
        gpu_pod("small", namespace="team-b", percent=1, card=1, started_ms=START, ended_ms=START + MINUTE),
    )

    assert running.postings("uid-hog") == [(START, START + MINUTE, 1_938, "settled")]
    assert running.postings("uid-small") == [(START, START + MINUTE, 10, "settled")]


def test_a_binding_fixes_what_the_node_had_while_no_settler_ran(running: Town) -> None:
    """Beside it a pod that another scheduler bound: it is charged by the node as the settler finds it."""
    running.change("configmaps", BY_HOST)
    running.change("nodes", roomy("640"))
    said = {"version": 1, "cards": {"A100": 2}, "cpu_milli": 62_000, "memory_bytes": 1 << 30}
    said |= {"node_cpu_milli": 64_000, "node_memory_bytes": 1 << 39}
    fixed = hog("fixed", started_ms=START, annotations={"bursar.dev/host": json.dumps(said)})

    running.change("pods", fixed)
    running.change("pods", hog("foreign", card=1, started_ms=START))

    rows = running.get("/v1/sessions?namespace=team-b").get_json()["sessions"]
    assert {row["pod"]: row["rateMilli"] for row in rows} == {"fixed": 1_938, "foreign": 194}


def test_a_pod_that_waits_reserves_what_its_cpu_will_cost(running: Town) -> None:
    running.change("nodes", roomy("64"))
    running.change("configmaps", BY_HOST)

    running.change("pods", hog("hog", node="", bound_ms=None, created_ms=running.clock()))

    assert running.budget("team-b")["reserved"] == 1_938 * 10 * MINUTE
