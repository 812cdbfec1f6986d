"""What an autoscaler sees: kube-scheduler's own filters, without the extender, over pods as the webhook
stores them on nodes as the agent describes them. Every form that a pod may ask in, by pairs."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from tests.docs.shell import commands, run
from tests.support.control_plane import create_namespace
from tests.support.waiting import eventually
from tests.webhook.servers import ROOT
from tests.webhook.worlds import POLICY, admitted, patched, review
from tests.worlds import Json, of_resources
from timekeeper.core.admission.policy import Standing
from timekeeper.core.request.host import CardHost
from webhook.admission.pods import mutate

PAGE = ROOT / "docs" / "cluster-autoscaler.md"
MIB = 81_559  # of each card
SEEING = replace(POLICY, sidecar=None, takes_whole_cards=True, card_host=CardHost(64_000, 1 << 40, MIB, MIB))


class Form(NamedTuple):
    """A way to ask, and by hand what it takes of each of its cards: hundredths of compute, and MiB."""

    limits: Json
    cards: int
    percent: int
    mib: int


def form(cards: int, share: int, mib: int, /, **limits: int) -> Form:
    """Of Bursar's own names."""
    return Form({f"bursar.dev/gpu-{name}": str(amount) for name, amount in limits.items()}, cards, share, mib)


FORMS = {
    "third": form(1, 33, 26_914, percent=33),
    "half": form(1, 50, 40_779, percent=50),
    "most": form(1, 90, 73_403, percent=90),
    "whole by percent": form(1, 100, MIB, percent=100),
    "whole by number": form(1, 100, MIB, count=1),
    "whole by both": form(1, 100, MIB, count=1, percent=100),
    "whole of the plugin": Form({"nvidia.com/gpu": "1"}, 1, 100, MIB),
    "little memory": form(1, 0, 8_192, memory=8_192),
    "half of the memory": form(1, 0, 40_779, memory=40_779),
    "all of the memory": form(1, 0, MIB, memory=MIB),
    "memory by number": form(1, 0, 60_000, memory=60_000, count=1),
    "little compute, much memory": form(1, 10, 72_000, percent=10, memory=72_000),
    "much compute, little memory": form(1, 85, 8_192, percent=85, memory=8_192),
    "share by number": form(1, 40, 32_623, percent=40, count=1),
    "two by percent": form(2, 100, MIB, percent=200),
    "two by number": form(2, 100, MIB, count=2),
    "two of the plugin": Form({"nvidia.com/gpu": "2"}, 2, 100, MIB),
    "halves of two": form(2, 50, 40_779, percent=100, count=2),
    "memory of two": form(2, 0, 30_000, memory=60_000, count=2),
    "both of two": form(2, 20, 60_000, percent=40, memory=120_000, count=2),
}


def stored(asked: Form) -> Json:
    """The resources of the container as the API server stores them."""
    main = of_resources(dict(asked.limits))
    main["resources"]["requests"] = dict(asked.limits)
    raw = admitted(main)
    answer = mutate(review(raw), lambda _: Standing("IN_BUDGET"), SEEING)
    assert not answer.refusal, answer
    resources: Json = patched(raw, list(answer.operations))["spec"]["containers"][0]["resources"]
    return resources


def has_room(first: Form | None, second: Form, cards: int) -> bool:
    """Whether the extender places the second beside the first, which has the first cards."""
    taken = first.cards if first else 0
    if first and max(first.percent + second.percent, 0) <= 100 and first.mib + second.mib <= MIB:
        taken = 0
    return second.cards <= cards - taken


def adds_up(first: Form | None, second: Form, cards: int) -> bool:
    """Whether the node's sums suffice, wherever on its cards the rest is."""
    asked = [form for form in (first, second) if form]
    percent = sum(form.cards * form.percent for form in asked)
    return percent <= 100 * cards and sum(form.cards * form.mib for form in asked) <= MIB * cards


class Case(NamedTuple):
    first: str  # runs; "": nothing does
    second: str  # waits
    cards: int  # of the node

    @property
    def sums(self) -> tuple[Form | None, Form, int]:
        return FORMS.get(self.first), FORMS[self.second], self.cards


CASES = [
    Case(first, second, cards)
    for first, second in product(("", *FORMS), FORMS)
    for cards in {max(FORMS[form].cards for form in (first, second) if form)}
]


def pods(at: int, case: Case) -> Iterator[Json]:
    for name, asked, where in (
        ("first", case.first, {"nodeName": f"n{at}"}),
        ("second", case.second, {"nodeSelector": {"kubernetes.io/hostname": f"n{at}"}}),
    ):
        if asked:
            main = {"name": "main", "image": "i", "resources": stored(FORMS[asked])}
            yield {"metadata": {"name": f"{name}-{at}"}, "spec": {"containers": [main], **where}}


def said(listed: Json) -> dict[int, str]:
    """Of each waiting pod that was tried, by number: "" where it has a node, else why not."""
    found: dict[int, str] = {}
    for pod in listed["items"]:
        name, _, at = pod["metadata"]["name"].rpartition("-")
        conditions: list[Any] = pod["status"].get("conditions", [])
        refused = [
            condition["message"] for condition in conditions if condition.get("reason") == "Unschedulable"
        ]
        if name == "second" and (refused or pod["spec"].get("nodeName")):
            found[int(at)] = "" if pod["spec"].get("nodeName") else refused[0]
    return found


def test_without_the_extender_a_second_pod_fits_exactly_where_the_cards_have_room_for_it(
    control_plane: ControlPlane,
) -> None:
    """Of cards that differ in what is free it sees the sum alone: it takes such a node for one with room, and
    never one with room for full."""
    path = create_namespace(control_plane, "pairs")
    for at, case in enumerate(CASES):
        node = kwok_node(f"n{at}", cards=case.cards, memory_mib=MIB)
        control_plane.api.call("POST", "/api/v1/nodes", node)
        for pod in pods(at, case):
            control_plane.api.call("POST", path, pod)
    control_plane.start_scheduler()

    eventually(lambda: len(said(control_plane.api.call("GET", path))) == len(CASES), "each to be tried")

    answers = said(control_plane.api.call("GET", path))
    wrong = [(case, answers[at]) for at, case in enumerate(CASES) if (not answers[at]) != adds_up(*case.sums)]
    assert wrong == []
    apart = [case for case in CASES if has_room(*case.sums) != adds_up(*case.sums)]
    assert {case.cards for case in apart} == {2}
    assert not any(has_room(*case.sums) for case in apart), "it takes no node with room for full"
    assert not any(answers[at] for at, case in enumerate(CASES) if not case.first), "an empty node suits all"


def test_the_page_shows_which_nodes_lack_the_unit(control_plane: ControlPlane, tmp_path: Path) -> None:
    former = {"bursar.dev/gpu-percent": "100", "bursar.dev/gpu-memory": str(MIB)}
    for node in (kwok_node("now", cards=2), kwok_node("former", cards=1, capacity=former)):
        control_plane.api.call("POST", "/api/v1/nodes", node)
    (listing,) = (command for command in commands(PAGE) if "custom-columns" in command)

    lines = [line.split() for line in run(control_plane, listing, tmp_path).splitlines()]
    assert ["now", "200", "2M"] in lines
    assert ["former", "100", "<none>"] in lines
