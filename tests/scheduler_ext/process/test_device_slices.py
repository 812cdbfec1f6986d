"""A running extender beside drivers that publish GPUs for device claims."""

from tests.scheduler_ext.apiserver import ApiServer, Fault
from tests.scheduler_ext.conftest import Start
from tests.scheduler_ext.unit.test_published_gpus import BY_CLAIMS, gpu
from tests.scheduler_ext.worlds import node, percent
from tests.support.simulated_timekeeper import SimulatedTimekeeper, standings
from tests.support.tls import Tls
from tests.support.waiting import eventually

ODD = "odd.example.com"
SENTENCE = BY_CLAIMS.format("gpu.nvidia.com")


def test_a_node_of_a_driver_is_refused_and_shown_with_the_driver_until_its_slice_is_gone(
    api: ApiServer, start: Start
) -> None:
    api.serves_claims = True
    api.put("nodes", node("n"))
    api.put("resourceslices", gpu())
    running = start()
    pod = running.put_pod(percent(50, schedulerName="bursar-scheduler"))

    refused = running.filter(pod, "n")

    assert refused["FailedAndUnresolvableNodes"] == {"n": SENTENCE}
    assert "device claims of gpu.nvidia.com" in running.bind(pod, "n")
    posted = running.posted()
    assert posted["nodes"]["n"]["closed"] == "its GPUs are given out by device claims of gpu.nvidia.com"
    assert running.client.get("/metrics").text.count('bursar_extender_nodes_closed{reason="claims"} 1.0') == 1
    (waiting,) = posted["waiting"].values()
    assert SENTENCE in waiting["reason"]

    api.delete("resourceslices", "n-gpu.nvidia.com")

    eventually(lambda: running.filter(pod, "n")["NodeNames"] == ["n"])


def test_where_the_api_is_not_served_nothing_watches_slices(api: ApiServer, start: Start) -> None:
    api.put("nodes", node("n"))
    running = start()

    assert running.filter(running.put_pod(percent(50)), "n")["NodeNames"] == ["n"]
    assert api.made("claims") == ["/apis/resource.k8s.io/v1"]
    assert api.made("list devices") == []


def test_nothing_is_given_out_before_the_slices_have_been_read(api: ApiServer, start: Start) -> None:
    api.serves_claims = True
    api.faults += [Fault("claims", status=503), Fault("list devices", status=500)]
    api.put("nodes", node("n"))
    api.put("resourceslices", gpu())

    running = start(wait=False)

    eventually(lambda: len(api.made("list")) >= 2)
    answers: list[str] = []

    def is_refused() -> bool:
        body = {"Pod": percent(50), "NodeNames": ["n"]}
        answers.append(str(running.client.post("/filter", json=body).get_json()))
        return SENTENCE in answers[-1]

    eventually(is_refused)
    assert not any("'NodeNames': ['n']" in each for each in answers)
    assert [line for line in running.lines if line.startswith("unheard")]


def test_rules_of_an_administrator_come_with_the_standings(api: ApiServer, start: Start, tls: Tls) -> None:
    api.serves_claims = True
    api.put("nodes", node("n"))
    api.put("resourceslices", gpu(driver=ODD, kind="train"))
    with SimulatedTimekeeper(tls) as timekeeper:
        running, known = start(*timekeeper.flags), {"drivers": {ODD: True}}
        pod = running.put_pod(percent(50, schedulerName="bursar-scheduler"))
        assert running.filter(pod, "n")["NodeNames"] == ["n"]

        timekeeper.document = standings({**known, "gpuDevices": {ODD: ["type = train"]}}, revision="2")

        closed = {"n": BY_CLAIMS.format(ODD)}
        eventually(lambda: running.filter(pod, "n")["FailedAndUnresolvableNodes"] == closed)
        timekeeper.document = standings({**known, "gpuDevices": {ODD: ["type = infer"]}}, revision="3")
        eventually(lambda: running.filter(pod, "n")["NodeNames"] == ["n"])
