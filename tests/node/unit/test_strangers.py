"""Processes on cards that their pods were not given."""

from hypothesis import given
from hypothesis import strategies as st

from sidecar.node.state import strangers
from sidecar.node.state.strangers import LASTS_MS, NONE, StrangerUse, UseHistory
from sidecar.node.values import GPUProcess, PodState, ProcessOwner

TRUSTED = frozenset({"kube-system"})
TRAIN = PodState("a", "team-a", "train", ("GPU-1",), False, (("main", ("GPU-1",)),))
WEB = PodState("w", "team-a", "web", (), False, ())
DCGM = PodState("d", "kube-system", "dcgm", (), False, ())
INTRUDER = StrangerUse("GPU-1", "w", "team-a", "web", "")


def on(card: str, pid: int = 7) -> GPUProcess:
    return GPUProcess(pid, card, 100, 5)


def found(
    *processes: GPUProcess, owner: ProcessOwner | None = None, program: str = "python3", ended: bool = False
) -> frozenset[StrangerUse]:
    """The strangers where all processes are of one pod (or none), and train holds GPU-1."""
    owners = {} if ended else {each.pid: owner for each in processes}
    pods = (TRAIN, WEB, DCGM)
    return strangers.found(processes, owners, pods, {"a": ("GPU-1",)}, TRUSTED, lambda _: program)


def test_a_process_on_a_card_of_its_pod_is_no_stranger() -> None:
    assert found(on("GPU-1"), owner=ProcessOwner("a", "c1")) == frozenset()


def test_a_process_on_another_card_than_its_pods_is_one() -> None:
    assert found(on("GPU-2"), owner=ProcessOwner("a", "c1")) == {
        StrangerUse("GPU-2", "a", "team-a", "train", "")
    }


def test_a_process_of_a_pod_without_cards_is_one() -> None:
    assert found(on("GPU-1"), owner=ProcessOwner("w", "c1")) == {INTRUDER}


def test_a_process_of_an_unknown_pod_is_one() -> None:
    assert found(on("GPU-1"), owner=ProcessOwner("gone", "c1")) == {StrangerUse("GPU-1", "gone", "", "", "")}


def test_a_process_of_no_pod_is_one_by_its_name_alone() -> None:
    assert found(on("GPU-1", 7), on("GPU-1", 8)) == {StrangerUse("GPU-1", "", "", "", "python3")}


def test_a_process_that_has_ended_or_may_use_cards_and_pods_of_trusted_namespaces_are_none() -> None:
    assert found(on("GPU-1"), program="") == frozenset()
    assert found(on("GPU-1"), owner=ProcessOwner("d", "c1")) == frozenset()


def test_a_program_in_a_pod_is_not_trusted_by_its_name() -> None:
    assert found(on("GPU-1"), owner=ProcessOwner("w", "c1"), program="nvidia-cuda-mps") == {INTRUDER}


def test_a_process_that_ended_before_it_was_read_is_none() -> None:
    assert found(on("GPU-1"), ended=True) == frozenset()
    assert found(on("GPU-1"), program="") == frozenset()


def test_a_stranger_counts_from_the_second_look_in_a_row_on() -> None:
    once = strangers.after(NONE, frozenset({INTRUDER}), 1_000)
    twice = strangers.after(once, frozenset({INTRUDER}), 6_000)

    assert strangers.sentence(once) == ""
    assert strangers.new(NONE, once) == ()
    assert strangers.sentence(twice) == "pod team-a/web uses card GPU-1, which is not allocated to it"
    assert strangers.new(once, twice) == (INTRUDER,)


def test_two_looks_that_are_not_in_a_row_make_no_stranger() -> None:
    watch = NONE
    for now_ms, seen in ((0, {INTRUDER}), (5_000, set()), (10_000, {INTRUDER})):
        watch = strangers.after(watch, frozenset(seen), now_ms)

    assert watch.proven == ()


def test_a_stranger_is_reported_for_a_minute_after_it_was_seen_last_and_once() -> None:
    watch = UseHistory(frozenset({INTRUDER}), ())
    seen = strangers.after(watch, frozenset({INTRUDER}), 0)
    back = strangers.after(seen, frozenset({INTRUDER}), LASTS_MS - 1)
    lasting = strangers.after(back, frozenset(), 2 * LASTS_MS - 2)
    over = strangers.after(lasting, frozenset(), 2 * LASTS_MS - 1)

    assert strangers.new(seen, back) == ()
    assert [len(each.proven) for each in (seen, back, lasting, over)] == [1, 1, 1, 0]


def test_of_several_one_is_named_and_the_others_are_counted() -> None:
    others = {StrangerUse("GPU-1", "", "", "", "python3"), StrangerUse("GPU-3", "gone", "", "", "")}
    watch = UseHistory(frozenset(), ())
    for _ in range(2):
        watch = strangers.after(watch, frozenset({INTRUDER, *others}), 0)

    assert strangers.sentence(watch) == (
        "pod team-a/web uses card GPU-1, which is not allocated to it (and 2 more such)"
    )


def test_each_kind_of_stranger_is_reported_in_words() -> None:
    assert strangers.describe(StrangerUse("GPU-1", "", "", "", "python3")) == (
        "a process outside of pods (python3) uses card GPU-1"
    )
    assert strangers.describe(StrangerUse("GPU-1", "gone", "", "", "")) == (
        "a deleted pod (UID gone) uses card GPU-1"
    )


kinds = st.sampled_from(
    [INTRUDER, StrangerUse("GPU-2", "", "", "", "x"), StrangerUse("GPU-2", "gone", "", "", "")]
)


@given(st.lists(st.tuples(st.frozensets(kinds), st.integers(0, 90_000)), max_size=12))
def test_only_who_was_seen_twice_in_a_row_within_the_last_minute_is_reported(
    looks: list[tuple[frozenset[StrangerUse], int]],
) -> None:
    watch, now_ms = NONE, 0
    until: dict[StrangerUse, int] = {}
    before: frozenset[StrangerUse] = frozenset()
    for seen, step_ms in looks:
        now_ms += step_ms
        until = {each: moment for each, moment in until.items() if moment > now_ms}
        until |= {each: now_ms + 60_000 for each in seen if each in before or each in until}
        before = seen
        watch = strangers.after(watch, seen, now_ms)

        assert dict(watch.proven) == until
