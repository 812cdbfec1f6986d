"""What pods use, by NVIDIA's own binding and a library that does as a file says."""

from pathlib import Path
from typing import Any

from tests.sidecar.worlds import read_by_nvml

# The pods' use by one look; seats and pods come as arguments.
LOOK = """
import json, sys
from sidecar.node.nvml.cards import NvmlReader
from sidecar.node.state.use import measure
from sidecar.node.values import PodState, ProcessOwner

seats, pods = json.loads(sys.argv[1])
look = NvmlReader(lambda: 0).look()
assert not look.error, look.error
found = measure(
    look.loads,
    look.processes,
    {int(pid): uid and ProcessOwner(uid, "c") for pid, uid in seats.items()},
    [PodState(uid, "team", uid, tuple(cards), False, ()) for uid, cards in pods.items()],
)
used = {pod.uid: {c.uuid: [c.utilisation, c.memory_mib] for c in pod.cards} for pod in found.pods}
print(json.dumps(used))
"""


def used(tmp_path: Path, description: str, seats: dict[str, str | None], **pods: list[str]) -> Any:
    """By pod and card: percent and MiB."""
    ((found,), _) = read_by_nvml(tmp_path, LOOK, [seats, pods], description)
    return found


def test_two_pods_on_a_card_are_distinguished_and_a_third_is_idle(tmp_path: Path) -> None:
    description = """
card GPU-a 70 9000 81920
card GPU-b 0 0 81920
process GPU-a 11 6000 50
process GPU-a 12 1000 5
process GPU-a 13 2000 15
"""

    seats: dict[str, str | None] = {"11": "x", "12": "x", "13": "y"}
    found = used(tmp_path, description, seats, x=["GPU-a"], y=["GPU-a"], z=["GPU-a", "GPU-b"])

    assert found == {
        "x": {"GPU-a": [55, 7000]},
        "y": {"GPU-a": [15, 2000]},
        "z": {"GPU-a": [0, 0], "GPU-b": [0, 0]},
    }


def test_without_figures_of_processes_the_cards_own_count_for_a_pod_that_is_alone(tmp_path: Path) -> None:
    description = """
card GPU-a 70 9000 81920
process GPU-a 11 - -
fail nvmlDeviceGetProcessUtilization NOT_SUPPORTED
"""

    assert used(tmp_path, description, {"11": "x"}, x=["GPU-a"], y=["GPU-a"]) == {
        "x": {"GPU-a": [70, 9000]},
        "y": {"GPU-a": [0, 0]},
    }


def test_beside_an_unattributed_process_a_pods_use_is_unknown(tmp_path: Path) -> None:
    description = "card GPU-a 70 9000 81920\nprocess GPU-a 11 1000 70\n"

    (tmp_path / "seated").mkdir()

    nobody = used(tmp_path, description, {}, x=["GPU-a"])
    no_pod = used(tmp_path / "seated", description, {"11": None}, x=["GPU-a"])

    assert (nobody, no_pod) == ({"x": {"GPU-a": [None, None]}}, {"x": {"GPU-a": [0, 0]}})


def test_pods_on_mig_instances_have_their_memory_and_no_time(tmp_path: Path) -> None:
    description = """
card GPU-a 0 0 40960
mig GPU-a MIG-1 1g.5gb 4864
mig GPU-a MIG-2 2g.10gb 9856
process MIG-1 11 3000 -
fail nvmlDeviceGetUtilizationRates NOT_SUPPORTED
fail nvmlDeviceGetProcessUtilization NOT_SUPPORTED
"""

    found = used(tmp_path, description, {"11": "x"}, x=["MIG-1"], y=["MIG-2"])

    assert found["x"]["MIG-1"] == [None, 3000]
    assert found["y"]["MIG-2"] == [0, 0]
