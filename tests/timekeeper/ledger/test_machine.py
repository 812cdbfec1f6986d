"""The ledger under everything that can happen to it, on both databases: see machine.py."""

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import hypothesis
import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.postgresql import fresh_postgresql
from tests.support import profile
from tests.support.profile import IS_SOAK, examples
from tests.timekeeper.lives import ALL_NODES, BUDGETS, LABELS, NODES, SETTINGS, TEAMS
from tests.timekeeper.machine import BEGINNINGS, Machine
from tests.timekeeper.restores import CLOCK_STEPS
from tests.timekeeper.versions import OLDER, SILENCE
from tests.timekeeper.worlds import T0
from timekeeper.store.engine.engine import open_store
from timekeeper.store.engine.upgrade import upgrade

BOTH_DATABASES = "the law of the whole ledger"
pytestmark = pytest.mark.untraced


Url = Callable[[ExitStack], str]
Tell = Callable[[str], None]
STEPS, SOAKED_STEPS = 12, 20
SOAKED, TOGETHER = 5_000, 500  # Hypothesis remembers every history of a run: each run is one part of them
# The histories are the same on both; for what PostgreSQL does otherwise fewer of them suffice.
HISTORIES = {"sqlite": 14, "postgresql": 4}  # test_audit_of_lives.py has others
SEED = 20261120  # one for all runs; a soak takes a new one


@pytest.fixture(params=["sqlite", "postgresql"])
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Url:
    """Gives each history an empty ledger of its own."""
    if request.param == "postgresql":
        return lambda stack: stack.enter_context(fresh_postgresql())
    template, used = tmp_path / "template.db", tmp_path / "used"
    store = open_store(f"sqlite:///{template}")
    upgrade(store)
    store.close()

    def copied(stack: ExitStack) -> str:
        used.mkdir()
        stack.callback(shutil.rmtree, used)
        shutil.copy(template, used / "ledger.db")
        return f"sqlite:///{used}/ledger.db"

    return copied


@pytest.fixture
def tell(capfd: pytest.CaptureFixture[str]) -> Tell:
    """Says how far a long test has come."""

    def said(text: str) -> None:
        with capfd.disabled():
            print(text, flush=True)

    return said


def lived(
    fresh: Url,
    histories: int,
    seed: int,
    steps: int = STEPS,
    kind: type[Machine] = Machine,
    tell: Tell = print,
) -> None:
    """So many random histories."""
    tell(f"seed {seed}")
    machine = hypothesis.seed(seed)(type("Machine", (kind,), {"url": staticmethod(fresh)}))
    run_state_machine_as_test(
        machine,
        settings=hypothesis.settings(
            max_examples=histories,
            stateful_step_count=steps,
            deadline=None,
            print_blob=True,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        ),
    )


@pytest.mark.parametrize("fresh", HISTORIES, indirect=True)
def test_whatever_happens_the_ledger_says_what_the_evidence_proves(
    fresh: Url, request: pytest.FixtureRequest
) -> None:
    lived(fresh, HISTORIES[request.node.callspec.params["fresh"]], SEED)


@pytest.mark.soak
@pytest.mark.timeout(14_400)
def test_in_five_thousand_histories_the_ledger_says_what_the_evidence_proves(fresh: Url, tell: Tell) -> None:
    seed = profile.seed()
    for done in range(0, SOAKED, TOGETHER):
        lived(fresh, TOGETHER, seed + done, SOAKED_STEPS, tell=tell)
        tell(f"{done + TOGETHER} histories")


def flips(machine: Machine, rng: random.Random) -> set[tuple[str, bool]]:
    """Entries and labels name other modes while pods are bound and end; which namespaces governed pods, and
    which metered ones."""
    machine.begins(rng.choice(BEGINNINGS), rng.choice(BUDGETS), rng.choice(SETTINGS))
    for _ in range(12):
        team = rng.choice(TEAMS)
        if rng.random() < 0.5:
            machine.a_label_names_another_mode(team, rng.choice(LABELS))
        else:
            machine.a_budget_changes(team, rng.choice(BUDGETS))
        machine.binds(rng.randrange(6), rng.randint(1, 99), team, rng.choice(NODES), 30, True, 0)
        machine.look()
        machine.time_passes(rng.choice((1_000, 700_000)), True)
        if rng.random() < 0.5:
            machine.ends(rng.randrange(99), 0)
        if rng.random() < 0.2:
            machine.the_settler_is_killed()
        machine.look()
    return {(pod.namespace, pod.terms.governs) for pod in machine.written.pods.values() if pod.terms}


@contextmanager
def played(number: int, fresh: Url) -> Iterator[Machine]:
    """A machine on a new database. A failure names its seed."""
    machine = type("Machine", (Machine,), {"url": staticmethod(fresh)})()
    try:
        yield machine
        machine.failed = False
    except AssertionError as error:
        raise AssertionError(f"BURSAR_SEED={number}") from error
    finally:
        machine.teardown()


def test_a_pod_is_charged_by_the_mode_of_its_namespace_at_its_binding(fresh: Url, tell: Tell) -> None:
    """Modes flip by entries and by labels."""
    seed = profile.seed()
    tell(f"seed {seed}") if IS_SOAK else None
    both = 0
    for number in range(seed, seed + (histories := examples(5, soak=400))):
        with played(number, fresh) as machine:
            kinds = flips(machine, random.Random(number))
        both += any({(team, True), (team, False)} <= kinds for team in TEAMS)
    assert both > histories // 2


def a_silent_node_s_report_is_listed_a_day_later(machine: Machine) -> None:
    """It proves nothing after the node's last evidence."""
    machine.begins(T0, BUDGETS[0], SETTINGS[6])
    machine.watches_are_cut()
    machine.goes(0)
    machine.an_agent_lists_all("n1", False)
    machine.time_passes(90_000_000, False)


def a_former_settler_s_report_is_listed_anew(machine: Machine) -> None:
    """It may be older than the process that reads it."""
    machine.begins(T0, BUDGETS[0], SETTINGS[6])
    machine.our_clock_is_set(3_600_000)
    machine.a_node_boots_anew_after_a_pod_went(0, 10_000, [False, True], True)
    machine.the_settler_is_killed()


def a_pod_is_missing_from_the_first_list_after_the_clock_went_back(machine: Machine) -> None:
    """By the list's clock it was removed before it was bound: the tick's own time, which never goes back, is
    later. Found at random (`AXicY3BkgEJGMMUAwfwgCswSgsgwYGI1IMUI4WCVB2EWMM0IALZvB60=`)."""
    machine.begins(T0, BUDGETS[0], SETTINGS[6])
    machine.our_clock_is_set(-7_200_000)
    machine.the_settler_is_slow(1)
    machine.a_node_boots_anew_after_a_pod_went(0, 0, [False], False)
    machine.the_settler_is_killed()


def the_clock_goes_back_after_a_pod_went_unseen(machine: Machine) -> None:
    """The same without a reboot."""
    machine.begins(T0, BUDGETS[0], SETTINGS[6])
    machine.watches_are_cut()
    machine.goes(0)
    machine.our_clock_is_set(-61_000)
    machine.the_settler_is_killed()


def two_entries_take_effect_at_one_moment(machine: Machine) -> None:
    """The ledger is a millisecond ahead of the truth."""
    machine.begins(T0, BUDGETS[2], SETTINGS[7])
    machine.watches_are_cut()
    machine.ends(1, 0)
    machine.goes(0)
    machine.settings_change(SETTINGS[6])
    machine.goes(0)
    machine.the_settler_is_killed()


@pytest.mark.parametrize(
    "history",
    [
        a_silent_node_s_report_is_listed_a_day_later,
        a_former_settler_s_report_is_listed_anew,
        a_pod_is_missing_from_the_first_list_after_the_clock_went_back,
        the_clock_goes_back_after_a_pod_went_unseen,
        two_entries_take_effect_at_one_moment,
    ],
)
def test_oracle_and_ledger_agree_on_what_they_once_did_not(
    fresh: Url, history: Callable[[Machine], None]
) -> None:
    with played(0, fresh) as machine:
        history(machine)
        machine.look()


SIGNS = {"restore": "", "silence": SILENCE, "older": OLDER}
WORDS = (
    *("clock", "end", "leaseless", "unready", "backup", *SIGNS, "version", "uid", "goes", "ends", "killed"),
)


def misreads(machine: Machine, rng: random.Random) -> set[str]:
    """Clocks of nodes are set, nodes have no Lease or are not known to be ready, etcd is restored, UIDs come
    back, while pods are bound and end; the events that came."""
    machine.begins(T0, BUDGETS[3], SETTINGS[0])
    came: set[str] = set()
    for _ in range(14):
        team = rng.choice(TEAMS)
        if len(machine.living()) < 5:
            machine.binds(rng.randrange(6), 30, team, rng.choice(NODES), 30, rng.random() < 0.7, 0)
        machine.time_passes(rng.choice((1_000, 20_000, 700_000)), True)
        word = rng.choice(WORDS)
        if word == "clock":
            machine.a_node_s_clock_is_set(rng.choice(NODES), rng.choice(CLOCK_STEPS))
        elif word == "end" and machine.living():
            after, runs = rng.choice((0, 9_000)), rng.choice((60_000, 10_800_000))
            step = rng.choice(CLOCK_STEPS)
            machine.a_pod_ends_just_after_its_node_s_clock_is_set(rng.randrange(99), step, runs, after)
        elif word == "leaseless":
            machine.a_pod_is_bound_to_a_node_without_a_lease(rng.randrange(99), team, rng.random() < 0.7)
        elif word == "backup":
            machine.etcd_is_backed_up()
        elif word == "unready":
            machine.ready_becomes_unknown_or_not(rng.choice(ALL_NODES))
        elif word in SIGNS and machine.backup is not None:
            machine.etcd_is_restored(SIGNS[word], rng.randrange(99))
        elif word == "uid" and any(pod.gone is not None for pod in machine.pods):
            machine.a_uid_comes_back(rng.randrange(99), rng.choice(NODES))
        elif word == "version" and machine.living():
            machine.a_version_is_used_again(rng.randrange(99))
        elif word == "goes" and machine.living():
            machine.goes(rng.randrange(99))
        elif word == "ends" and machine.living():
            machine.ends(rng.randrange(99), 0)
        elif word == "killed":
            machine.the_settler_is_killed()
        came.add(word)
        machine.look()
        machine.time_passes(rng.choice((1_000, 60_000)), rng.random() < 0.5)
        machine.look()
    return came


def test_what_a_node_or_a_restored_etcd_says_changes_charges_of_its_own_pods_alone(fresh: Url) -> None:
    seed, came = profile.seed(), set[str]()
    for number in range(seed, seed + (histories := examples(10, soak=400))):
        with played(number, fresh) as machine:
            came |= misreads(machine, random.Random(number))
    assert came == set(WORDS), (histories, came)


def forces(machine: Machine, rng: random.Random) -> set[str]:
    """Pods are deleted by force, some after a deletion with grace, while nodes renew Leases, fall silent
    and boot anew, agents list, watches are cut, and settlers end; which kinds of ends came."""
    machine.begins(T0, BUDGETS[3], rng.choice((SETTINGS[0], SETTINGS[5], SETTINGS[3])))
    events: tuple[Callable[[], None], ...] = (
        lambda: machine.goes(rng.randrange(99)),
        lambda: machine.is_evicted(rng.randrange(99)),
        lambda: machine.node_lives(rng.choice(NODES), 0, rng.choice((1, 7_000, 40_000)), rng.random() < 0.5),
        lambda: machine.falls_silent_or_comes_back(rng.choice(NODES)),
        lambda: machine.an_agent_tells(rng.choice(NODES), rng.randrange(32), rng.random() < 0.6, False),
        lambda: machine.a_node_boots_anew(rng.choice(NODES), rng.random() < 0.5, rng.random() < 0.5),
        machine.the_settler_is_killed,
        machine.watches_are_cut,
        machine.relist,
        lambda: machine.our_clock_is_set(rng.choice((-7_200_000, -61_000, 90_000))),
    )
    chances = (8, 3, 4, 1, 2, 1, 1, 1, 1, 1)
    for _ in range(14):
        if len(machine.living()) < 5:
            grace, team = rng.choice((0, 30, 300, 3600)), rng.choice(TEAMS)
            machine.binds(rng.randrange(6), 30, team, rng.choice(NODES), grace, rng.random() < 0.7, 0)
        machine.time_passes(rng.choice((1_000, 7_000, 20_000, 700_000)), rng.random() < 0.8)
        rng.choices(events, chances)[0]()
        machine.look()
        machine.time_passes(rng.choice((1_000, 5_000, 12_000, 60_000)), rng.random() < 0.7)
        machine.look()
    gone = [pod for pod in machine.written.pods.values() if pod.last is not None and pod.removed is not None]
    spans = [((pod.last or 0) - (pod.removed or 0), pod.grace) for pod in gone]
    return {"seconds" if span < grace else "grace" if span == grace else "a list" for span, grace in spans}


def test_a_pod_that_was_deleted_by_force_is_charged_for_seconds_or_for_its_grace(fresh: Url) -> None:
    seed, came = profile.seed(), set[str]()
    for number in range(seed, seed + (histories := examples(8, soak=400))):
        with played(number, fresh) as machine:
            came |= forces(machine, random.Random(number))
    assert {"seconds", "grace"} <= came, (histories, came)
