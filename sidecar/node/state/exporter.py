"""The metrics of cards and pods, in Prometheus' text format: cards under the names of NVIDIA's dcgm-exporter,
which dashboards use, and each pod's part under ours. Pure."""

from __future__ import annotations

from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sidecar.node.state.overuse import OveruseEpisode, Shares
    from sidecar.node.state.reports import UsageReports
    from sidecar.node.state.use import ContainerLoad, UsageReading
    from sidecar.node.values import NodeCard, PodState

    Sample = tuple[Mapping[str, object], int | float]

MIB = 1 << 20


def of_cards(cards: Iterable[NodeCard], measured: UsageReading, host: str) -> str:
    """Use of each card, with dcgm-exporter's names, units (percent, MiB) and labels."""
    known = {card.uuid: card for card in cards}
    seen = [(known[load.uuid], load) for load in measured.cards if load.uuid in known]
    labelled = [(_card_labels(card, host), card, load) for card, load in seen]
    busy = [(labels, load.utilisation) for labels, _, load in labelled if load.utilisation is not None]
    used = [(labels, load.memory_mib) for labels, _, load in labelled if load.memory_mib is not None]
    free = [
        (labels, max(0, card.memory_mib - load.memory_mib))
        for labels, card, load in labelled
        if load.memory_mib is not None
    ]
    return (
        metric("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", busy)
        + metric("DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB).", used)
        + metric("DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB).", free)
    )


def of_pods(
    pods: Iterable[PodState],
    measured: UsageReading,
    given: Mapping[str, Shares],
    episodes: Mapping[str, OveruseEpisode],
) -> str:
    """Each pod's use of each card by its processes, its share, and its use beyond the share."""
    seen = {pod.uid: pod for pod in pods}
    rows = [(seen[each.uid], load) for each in measured.pods if each.uid in seen for load in each.cards]
    busy: list[Sample] = []
    used: list[Sample] = []
    share: list[Sample] = []
    for pod, load in rows:
        labels = {"namespace": pod.namespace, "pod": pod.name, "uid": pod.uid, "uuid": load.uuid}
        if load.utilisation is not None:
            busy.append((labels, load.utilisation / 100))
        if load.memory_mib is not None:
            used.append((labels, load.memory_mib * MIB))
        if load.uuid in given.get(pod.uid, {}):
            share.append((labels, given[pod.uid][load.uuid] * MIB))
    over: list[Sample] = [
        (
            {"namespace": pod.namespace, "pod": pod.name, "uid": uid, "uuid": each.uuid},
            (each.memory_mib - each.share_mib) * MIB,
        )
        for uid, pod in seen.items()
        if uid in episodes
        for each in episodes[uid].cards
    ]
    return (
        metric(
            "bursar_pod_gpu_utilization_ratio",
            "gauge",
            "The part of the card's time that the pod uses, 1 is all.",
            busy,
        )
        + metric("bursar_pod_gpu_memory_used_bytes", "gauge", "Card memory in use by the pod.", used)
        + metric("bursar_pod_gpu_memory_share_bytes", "gauge", "Card memory allocated to the pod.", share)
        + metric("bursar_pod_gpu_memory_over_bytes", "gauge", "Card memory in use beyond the share.", over)
    )


def of_containers(pods: Iterable[PodState], measured: Iterable[ContainerLoad]) -> str:
    """The use of each card by each container's processes."""
    seen = {pod.uid: pod for pod in pods}
    busy: list[Sample] = []
    used: list[Sample] = []
    for each in measured:
        pod = seen.get(each.uid)
        if pod is None:
            continue
        whose = {"namespace": pod.namespace, "pod": pod.name, "uid": each.uid, "container": each.container}
        for load in each.cards:
            labels = {**whose, "container_id": each.container_id, "uuid": load.uuid}
            if load.utilisation is not None:
                busy.append((labels, load.utilisation / 100))
            if load.memory_mib is not None:
                used.append((labels, load.memory_mib * MIB))
    return metric(
        "bursar_container_gpu_utilization_ratio",
        "gauge",
        "The part of the card's time that the container uses, 1 is all.",
        busy,
    ) + metric(
        "bursar_container_gpu_memory_used_bytes", "gauge", "Card memory in use by the container.", used
    )


def of_reports(reports: UsageReports) -> str:
    """The posts of usage to the timekeeper."""
    posts: list[Sample] = [
        ({"outcome": "delivered"}, reports.delivered),
        ({"outcome": "failed"}, reports.failed),
    ]
    return (
        metric("bursar_node_reports_total", "counter", "Posts to the timekeeper by outcome.", posts)
        + metric(
            "bursar_node_intervals_waiting",
            "gauge",
            "Intervals not yet acknowledged.",
            [({}, reports.waiting)],
        )
        + metric(
            "bursar_node_intervals_lost_total", "counter", "Intervals given up.", [({}, reports.dropped)]
        )
    )


def metric(name: str, kind: str, about: str, samples: Iterable[Sample]) -> str:
    """One metric in Prometheus' text format; empty if it has no sample."""
    lines = [f"{name}{_labels(labels)} {number}\n" for labels, number in samples]
    return f"# HELP {name} {about}\n# TYPE {name} {kind}\n{''.join(lines)}" if lines else ""


def _card_labels(card: NodeCard, host: str) -> dict[str, object]:
    labels: dict[str, object] = {
        "gpu": card.index,
        "UUID": card.uuid,
        "device": f"nvidia{card.index}",
        "modelName": card.model,
        "Hostname": host,
    }
    return labels | ({"GPU_I_PROFILE": card.mig} if card.mig else {})


def _labels(labels: Mapping[str, object]) -> str:
    pairs = (f'{name}="{_escaped(str(each))}"' for name, each in labels.items())
    return f"{{{','.join(pairs)}}}" if labels else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
