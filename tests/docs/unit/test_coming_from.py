"""The manifest on each page of another system, run as it stands: governed, placed on a node that looks like
that system's, and written for its node plugin."""

from dataclasses import replace

import pytest

from scheduler_ext.binding.manifest import written_for
from scheduler_ext.fit.fit import fit
from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import read_pod
from scheduler_ext.snapshot.node_info import node_info_of
from tests.docs.coming_from import PAGES, WORLDS, foreign, manifest
from tests.webhook.worlds import POLICY, governed, violations_of
from timekeeper.core.dialects import DIALECTS
from timekeeper.core.values import Placement

NOW_NS = 1_700_000_000_000_000_007
OTHERS = replace(POLICY, other_schedulers=frozenset(name for each in DIALECTS for name in each.schedulers))


def test_each_page_has_a_manifest_that_is_run_here() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == {*WORLDS, "other-schedulers", "kueue"}


@pytest.mark.parametrize("page", WORLDS)
def test_its_pod_is_admitted_as_it_stands_and_gets_its_cards_in_the_form_of_its_plugin(page: str) -> None:
    world, raw = WORLDS[page], manifest(page)
    node = {
        "metadata": {"name": "n", "annotations": world.node_annotations, "labels": world.node_labels},
        "status": {"capacity": world.capacity},
    }
    there = node_info_of("n", read_node(node), {})

    assert violations_of(raw, POLICY) == ()
    after = governed(raw)
    pod = read_pod(after)
    assert pod is not None
    assert pod.request is not None, pod.malformed
    assert there.node_object is not None
    placement = fit(pod.request, there)
    assert isinstance(placement, Placement), placement
    written = written_for(
        pod, pod.request, placement, "n", NOW_NS, there.node_object.cards, there.node_object.family
    )

    annotations = after["metadata"]["annotations"] | written.annotations
    own = raw["metadata"].get("annotations", {})
    assert "bursar.dev/devices" in written.annotations
    assert annotations.items() >= world.ours.items()
    assert foreign(annotations, own) == world.written_at(NOW_NS)
    assert written.labels == world.labels


def test_a_pod_that_stays_with_its_own_scheduler_is_governed_and_keeps_it() -> None:
    raw = manifest("other-schedulers")

    after = governed(raw, policy=OTHERS)

    assert violations_of(raw, OTHERS) == ()
    assert after["spec"]["schedulerName"] == "kai-scheduler"
    pod = read_pod(after)
    assert pod is not None
    assert pod.request is not None
    assert [each.ask.share_milli for each in pod.request.asks] == [500]
