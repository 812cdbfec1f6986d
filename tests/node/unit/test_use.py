"""What each pod uses of each card: whose a process is, what nobody told, and the mean of several looks."""

from hypothesis import given
from hypothesis import strategies as st

from sidecar.node.state.use import NOTHING, ContainerLoad, PodLoad, UsageReading, by_container, mean, measure
from sidecar.node.values import CardLoad, GPUProcess, PodState, ProcessOwner

SEATS: dict[int, ProcessOwner | None] = {
    1: ProcessOwner("a", "c1"),
    2: ProcessOwner("b", "c2"),
    3: ProcessOwner("a", "c3"),
    9: None,
}


def pod(uid: str, *cards: str) -> PodState:
    return PodState(uid, "team", uid, cards, False, (("main", cards),))


def process(
    pid: int, memory_mib: int | None = 100, utilisation: int | None = 10, uuid: str = "G0"
) -> GPUProcess:
    return GPUProcess(pid, uuid, memory_mib, utilisation)


def measured(
    *processes: GPUProcess,
    pods: tuple[PodState, ...],
    loads: tuple[CardLoad, ...] = (CardLoad("G0", 60, 900),),
) -> dict[str, tuple[CardLoad, ...]]:
    return {each.uid: each.cards for each in measure(loads, processes, SEATS, pods).pods}


def test_a_pods_processes_on_a_card_are_added_up_and_others_are_not_its_own() -> None:
    found = measured(
        process(1, 100, 10), process(3, 50, 5), process(2, 700, 40), pods=(pod("a", "G0"), pod("b", "G0"))
    )

    assert found == {"a": (CardLoad("G0", 15, 150),), "b": (CardLoad("G0", 40, 700),)}


def test_a_pod_without_a_process_uses_nothing_where_all_processes_are_known() -> None:
    assert measured(process(2), process(9), pods=(pod("a", "G0"),)) == {"a": (CardLoad("G0", 0, 0),)}
    assert measured(pods=(pod("a", "G0"),), loads=(CardLoad("G0", 0, 5),)) == {"a": (CardLoad("G0", 0, 0),)}


def test_a_pod_is_not_idle_on_a_card_where_an_unknown_process_computes() -> None:
    assert measured(process(77), pods=(pod("a", "G0"),)) == {"a": (CardLoad("G0", None, None),)}
    assert measured(process(77), process(1), pods=(pod("a", "G0"),)) == {"a": (CardLoad("G0", 10, 100),)}


def test_a_busy_card_that_lists_no_process_reports_nothing_of_its_pods() -> None:
    assert measured(pods=(pod("a", "G0"),)) == {"a": (CardLoad("G0", None, None),)}


def test_a_card_that_did_not_answer_reports_nothing() -> None:
    assert measured(process(1), pods=(pod("a", "G0"),), loads=()) == {"a": (CardLoad("G0", None, None),)}


def test_where_processes_have_no_figures_the_cards_own_stand_in_for_a_pod_that_is_alone_there() -> None:
    alone = measured(process(1, None, None), process(3, 1, 1), pods=(pod("a", "G0"),))
    beside = measured(process(1, None, None), process(2), pods=(pod("a", "G0"),))

    assert alone == {"a": (CardLoad("G0", 60, 900),)}
    assert beside == {"a": (CardLoad("G0", None, None),)}


def test_a_pod_uses_no_more_than_the_whole_of_a_card() -> None:
    assert measured(process(1, 1, 80), process(3, 1, 70), pods=(pod("a", "G0"),)) == {
        "a": (CardLoad("G0", 100, 2),)
    }


def test_cards_that_the_pod_was_not_given_are_reported_where_it_computes_on_them() -> None:
    loads = (CardLoad("G0", 0, 0), CardLoad("G1", 50, 10))

    found = measured(process(1, uuid="G1"), pods=(pod("a", "G0"),), loads=loads)

    assert found == {"a": (CardLoad("G0", 0, 0), CardLoad("G1", 10, 100))}


def test_a_pod_that_was_given_no_card_has_no_figures_also_where_it_computes() -> None:
    assert measured(process(1), process(2), pods=(pod("a"), pod("b", "G0"), pod("c"))) == {
        "b": (CardLoad("G0", 10, 100),)
    }


def test_the_mean_is_over_the_looks_that_tell() -> None:
    looks = (
        UsageReading((PodLoad("a", (CardLoad("G0", 10, None),)),), (CardLoad("G0", 10, 100),)),
        UsageReading((PodLoad("a", (CardLoad("G0", 21, 50),)),), (CardLoad("G0", None, 200),)),
        UsageReading((PodLoad("b", (CardLoad("G0", None, None),)),), ()),
    )

    assert mean(looks) == UsageReading(
        (PodLoad("a", (CardLoad("G0", 16, 50),)), PodLoad("b", (CardLoad("G0", None, None),))),
        (CardLoad("G0", 10, 150),),
    )
    assert mean(()) == NOTHING


@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2, 3, 9, 77]), st.sampled_from(["G0", "G1"]), st.integers(0, 100)),
        unique_by=lambda each: each[:2],
        max_size=8,
    )
)
def test_pods_together_use_no_more_than_all_processes_do(given: list[tuple[int, str, int]]) -> None:
    processes = tuple(GPUProcess(pid, uuid, memory, 1) for pid, uuid, memory in given)
    loads = (CardLoad("G0", 100, 10**6), CardLoad("G1", 100, 10**6))

    found = measured(*processes, pods=(pod("a", "G0"), pod("b", "G1")), loads=loads)

    for uuid in ("G0", "G1"):
        told = sum(card.memory_mib or 0 for cards in found.values() for card in cards if card.uuid == uuid)
        assert told <= sum(each.memory_mib or 0 for each in processes if each.uuid == uuid)


def test_each_container_has_the_use_of_its_processes_and_the_name_that_its_cards_leave() -> None:
    own = PodState("a", "team", "a", ("G0", "G1"), False, (("main", ("G0",)), ("aux", ("G1",))))
    shared = PodState("b", "team", "b", ("G0",), False, (("left", ("G0",)), ("right", ("G0",))))
    processes = (
        *(process(1, 100, 10), process(1, 20, None, "G1"), process(3, 50, 5)),
        *(process(2, 700, 40), process(9), process(77)),
    )

    found = by_container((CardLoad("G0", 60, 900), CardLoad("G1", 30, 25)), processes, SEATS, (own, shared))

    assert found == (
        # of no container's cards: it strays onto that of another
        ContainerLoad("a", "", "c1", (CardLoad("G0", 10, 100), CardLoad("G1", 30, 20))),
        ContainerLoad("a", "main", "c3", (CardLoad("G0", 5, 50),)),
        ContainerLoad("b", "", "c2", (CardLoad("G0", 40, 700),)),
    )
