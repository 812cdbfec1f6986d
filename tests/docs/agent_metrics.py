"""The metrics of a node agent that has something to say of each."""

from prometheus_client.parser import text_string_to_metric_families

from sidecar.node.agent import Agent, AgentPorts
from sidecar.node.holder_survey import HolderSurvey, SurveyPaths
from sidecar.node.kube.api import ApiAnswer
from sidecar.node.metrics import of_agent, of_sources
from sidecar.node.nri.plugin import Plugin
from sidecar.node.nvml.cards import NVIDIA
from sidecar.node.state.exporter import of_cards, of_containers, of_pods, of_reports
from sidecar.node.state.overuse import CardOveruse, OveruseEpisode
from sidecar.node.state.reports import UsagePorts, UsageReports
from sidecar.node.state.use import ContainerLoad, PodLoad, UsageReading
from sidecar.node.values import CardLoad, GPUProcess, PodState, ProcessOwner
from tests.node.worlds import card, look, node
from tests.support.sources import unnoted
from timekeeper.edge.saved_outbox import OutboxPorts

Metrics = dict[str, tuple[str, list[str]]]  # name -> its kind and its labels


def of_the_agent() -> Metrics:
    """Those of its work."""
    answer = ApiAnswer(200, {"metadata": {"uid": "n", "resourceVersion": "2"}}, "")
    agent = Agent(AgentPorts(lambda _: answer, lambda _: None, lambda *_, **__: None), "boot", 5_000, 0)
    agent.on_node(node(), 0)
    agent.on_reading(look(card()), 0)
    agent.write_if_due(0)
    own = of_agent(agent, 0, {"posted": 1}) + of_sources((unnoted(),))
    return _read(own + Plugin(lambda *_: None, frozenset()).page())


def of_holders() -> Metrics:
    """Those of which pods have which cards, with a stranger."""
    paths = SurveyPaths("", "", "", (), True, frozenset(), NVIDIA)
    survey = HolderSurvey(paths, "boot", lambda *_, **__: None, lambda _: None)
    survey.on_node(node())
    stranger = look(processes=(GPUProcess(1, "GPU-1", None, None),))
    for now_ms in (0, 5_000):
        survey.survey(stranger, {1: ProcessOwner("a", "c")}, (), frozenset(), now_ms)
    return _read(survey.page())


def of_use() -> Metrics:
    """Those of measured use, with a pod over its share."""
    load = CardLoad("G", 1, 9)
    pod = PodState("u", "team", "p", ("G",), False, ())
    seen = UsageReading((PodLoad("u", (load,)),), (load,))
    ports = UsagePorts(OutboxPorts(lambda _: None, lambda *_: True), lambda: 0.5, lambda *_, **__: None)
    return _read(
        of_cards((card("G", mig="1g.5gb"),), seen, "n")
        + of_pods((pod,), seen, {"u": {"G": 8}}, {"u": OveruseEpisode(0, None, (CardOveruse("G", 9, 8),))})
        + of_containers((pod,), (ContainerLoad("u", "main", "id", (load,)),))
        + of_reports(UsageReports(ports, "run", 0))
    )


def _read(text: str) -> Metrics:
    return {
        family.name + ("_total" if family.type == "counter" else ""): (
            family.type,
            sorted({label for sample in family.samples for label in sample.labels}),
        )
        for family in text_string_to_metric_families(text)
    }
