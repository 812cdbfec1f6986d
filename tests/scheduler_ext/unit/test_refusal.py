"""What a node is refused with is said of every node, so no pod may make it long."""

from scheduler_ext.fit import refusal
from scheduler_ext.fit.fit import fit
from tests.scheduler_ext.worlds import asking, node, on, percent, read, rebuilt, request_of
from tests.worlds import card, container

LONG = {"bursar.dev/gpu-models": "H100," * 50_000}
FULL = ",".join(f"m{number:0127}" for number in range(64))


def test_of_many_models_the_first_five_are_named_and_the_same_of_every_node() -> None:
    wanted = request_of(percent(50, annotations={"bursar.dev/gpu-models": FULL}))
    excluded = request_of(percent(50, annotations={"bursar.dev/exclude-gpu-models": FULL}))
    five = FULL.split(",")[:5]

    assert refusal.not_allowed(wanted).sentence == f"no {' or '.join(five)} or 59 more here"
    assert (
        refusal.not_allowed(excluded).sentence
        == f"all cards here are of excluded models ({' or '.join(five)} or 59 more)"
    )
    snapshot = rebuilt([node("a"), node("b", card(0), card(1))], [])
    assert fit(wanted, snapshot.node("a")) == fit(wanted, snapshot.node("b")) == refusal.not_allowed(wanted)


def test_up_to_five_models_are_all_named() -> None:
    request = request_of(percent(50, annotations={"bursar.dev/gpu-models": "a,b,c,d,e"}))

    assert refusal.not_allowed(request).sentence == "no a or b or c or d or e here"


def test_of_many_different_amounts_the_first_five_are_reported() -> None:
    containers = [container(f"c{share}", gpu_percent=str(share)) for share in range(1, 100)]

    sentence = refusal.not_enough_free(request_of(asking(*containers))).sentence

    assert (
        sentence == "not enough free for 1 percent + 2 percent + 3 percent + 4 percent + 5 percent + 94 more"
    )


def test_a_waiting_pod_with_a_list_without_end_is_malformed_in_a_short_sentence() -> None:
    pod = read(percent(50, annotations=LONG))

    sentence = refusal.malformed(pod.malformed).sentence

    assert pod.request is None
    assert "metadata.annotations[bursar.dev/gpu-models]: it has 250000 characters" in sentence
    assert len(sentence) < 450


def test_what_is_wrong_with_a_pod_is_cut_to_400_characters() -> None:
    sentence = refusal.malformed("x" * 401).sentence

    assert sentence == "malformed GPU request: " + "x" * 397 + "..."
    assert refusal.malformed("x" * 400).sentence == "malformed GPU request: " + "x" * 400


def test_a_pod_that_runs_with_such_a_list_keeps_its_cards_and_closes_no_node() -> None:
    raw = on(percent(50), "n", "GPU-0")
    raw["metadata"]["annotations"] |= LONG

    found = rebuilt([node("n")], [raw]).node("n")
    assert found.closed == ""
    assert [free.share_milli for free in found.free_by_card if free is not None] == [500]
