"""The figures of the whole cluster, which are kept up to date node by node."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import read_pod
from scheduler_ext.reports.totals import Totals
from scheduler_ext.scoring.fragmentation_model import FragmentationModel
from scheduler_ext.scoring.typical_pods import BUILT_IN, TypicalPod, TypicalPods
from scheduler_ext.snapshot.snapshot import Snapshot, node_deleted, node_updated, pod_deleted, pod_updated
from tests.scheduler_ext.worlds import node, on, percent
from tests.worlds import card

EVENTS = st.lists(
    st.tuples(
        st.integers(0, 3), st.sampled_from(["node", "small", "gone", "pod", "ended"]), st.integers(1, 100)
    ),
    max_size=30,
)


def after(snapshot: Snapshot, at: int, what: str, share: int) -> Snapshot:
    """The snapshot after one thing has happened to one of four nodes."""
    name = f"m{at}"
    raw = node(name, card(0), card(1))
    raw["status"]["allocatable"]["cpu"] = str(share)
    pod = read_pod(on(percent(share, f"p{at}"), name, f"{name}-GPU-{share % 2}"))
    assert pod is not None
    if what == "node":
        return node_updated(snapshot, read_node(raw))
    if what == "small":
        return node_updated(snapshot, read_node(node(name, card(0))))
    if what == "gone":
        return node_deleted(snapshot, name)
    return pod_updated(snapshot, pod) if what == "pod" else pod_deleted(snapshot, pod, 0)


@given(EVENTS, st.sets(st.integers(0, 30)))
def test_figures_kept_up_to_date_are_those_counted_anew(
    events: list[tuple[int, str, int]], looks: set[int]
) -> None:
    models = [
        FragmentationModel(BUILT_IN),
        FragmentationModel(TypicalPods(((TypicalPod(2_000, 1, 700), 3), (TypicalPod(1_000, 2, 1_000), 1)))),
    ]
    used = [models[0]]
    kept, snapshot = Totals(lambda: used[-1]), Snapshot()
    for at, (where, what, share) in enumerate(events):
        snapshot = after(snapshot, where, what, share)
        if at in looks:
            used.append(models[share % 2])
            assert kept.now(snapshot.nodes) == Totals(lambda: used[-1]).now(snapshot.nodes)
