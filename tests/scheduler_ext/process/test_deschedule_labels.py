"""The mark for a descheduler on pods whose card must be left, over the API server."""

from scheduler_ext.controllers.deschedule_labels import LABEL, DescheduleLabels
from tests.scheduler_ext.conftest import Running
from tests.scheduler_ext.unit.test_gas import TAS, Json, intel_node, placed, wants
from tests.scheduler_ext.worlds import asking, rebuilt
from tests.support.waiting import eventually


def marks(running: Running) -> list[object]:
    """What was written of the label, in order."""
    labels = [each.get("metadata", {}).get("labels", {}) for each in running.api.made("patch")]
    return [each[LABEL] for each in labels if LABEL in each]


def steered(*cards: int) -> Json:
    return intel_node(cards=2, labels={f"{TAS}gas-deschedule-pods-card{card}": "true" for card in cards})


def test_the_leader_marks_a_pod_once_and_takes_the_mark_off_once(running: Running) -> None:
    pod = placed(rebuilt([steered()], []), asking(wants(i915=1)))
    assert pod is not None
    running.put_node(steered())
    running.put_pod(pod)

    running.put_node(steered(0))
    eventually(lambda: marks(running) == ["gpu"])
    running.put_node(steered(0, 1))
    running.put_node(steered(1))
    eventually(lambda: running.lines.count("deschedule-label pod=team-a/p present=False") == 1)

    assert marks(running) == ["gpu", None]
    assert running.lines.count("deschedule-label pod=team-a/p present=True") == 1


def test_a_replica_that_does_not_lead_marks_nothing(running: Running) -> None:
    pod = placed(rebuilt([steered()], []), asking(wants(i915=1)))
    assert pod is not None
    cache = running.extender.cache
    calls: list[object] = []

    class Recorder:
        def call(self, *sent: object, **_more: object) -> None:
            calls.append(sent)

    replica = DescheduleLabels(Recorder(), cache, lambda: False, lambda *_, **__: None)  # type: ignore[arg-type]
    running.put_node(steered(0))
    running.put_pod(pod)
    replica.look()

    assert calls == []
