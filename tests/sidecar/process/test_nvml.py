"""The figures, by NVIDIA's binding and a library that does as a file says; and everything that can go
wrong."""

from pathlib import Path
from typing import Any

import pytest

from deploy.local.identity import LocalAuthority
from tests.nvml import describe, fake_nvml
from tests.sidecar.worlds import Timekeeper, beating, events, read_by_nvml, variables
from tests.support.waiting import eventually

TWO = "card GPU-a 37 1200 81920\ncard GPU-b 0 0 81920\n"
A = {"uuid": "GPU-a", "utilisation": 37, "memory_mib": 1200, "scope": "shared"}
B = {"uuid": "GPU-b", "utilisation": 0, "memory_mib": 0, "scope": "shared"}

# Reads the cards at each of the moments and after each of the descriptions that it is given, in one process.
READER = """
import json, os, sys
from sidecar.nvml import PodCardReader
uuids, retry_ms, exclusive, steps = json.loads(sys.argv[1])
now = [0]
reader = PodCardReader(tuple(uuids), lambda: now[0], retry_ms, exclusive=exclusive)
for now[0], description in steps:
    with open(os.environ["BURSAR_FAKE_NVML"], "w") as file:
        file.write(description)
    print(json.dumps(reader.read()))
"""


def figures(
    tmp_path: Path,
    *steps: tuple[int, str],
    uuids: tuple[str, ...] = ("GPU-a", "GPU-b"),
    retry_ms: int = 100,
    exclusive: bool = False,
) -> tuple[list[Any], str]:
    """What a process reads at the moment of each step, the cards being as the step describes; and its log."""
    read, log = read_by_nvml(tmp_path, READER, [uuids, retry_ms, exclusive, steps])
    return read, "".join(f"{event}\n" for event in events(log))


def fail(call: str, error: str, uuid: str = "") -> str:
    return f"fail {call} {error} {uuid}\n"


def test_each_card_of_the_pod_has_its_utilisation_and_memory(tmp_path: Path) -> None:
    assert figures(tmp_path, (0, TWO + "card GPU-of-another-pod 1 2 3\n")) == ([[A, B]], "")


def test_figures_of_cards_that_are_the_pods_own_say_so(tmp_path: Path) -> None:
    own = [{**each, "scope": "exclusive"} for each in (A, B)]

    assert figures(tmp_path, (0, TWO), exclusive=True) == ([own], "")


def test_a_lost_card_is_reported_once_and_the_others_go_on(tmp_path: Path) -> None:
    lost = TWO + fail("*", "GPU_IS_LOST", "GPU-a")
    read, log = figures(tmp_path, (0, TWO), (1, lost), (50, lost), (150, lost), (300, lost))

    assert read == [[A, B], [B], [B], [B], [B]]
    assert log == 'event=card-silent uuid=GPU-a reason="GPU is lost"\n'


def test_a_card_that_comes_back_is_found_at_the_next_slow_try(tmp_path: Path) -> None:
    lost = TWO + fail("*", "GPU_IS_LOST", "GPU-a")
    read, log = figures(tmp_path, (0, TWO), (1, lost), (2, TWO), (99, TWO), (100, TWO), (101, lost))

    assert read == [[A, B], [B], [B], [B], [A, B], [B]]
    assert [line.split()[0] for line in log.splitlines()] == [
        "event=card-silent",
        "event=figures-back",
        "event=card-silent",
    ]


@pytest.mark.parametrize("error", ["DRIVER_NOT_LOADED", "LIB_RM_VERSION_MISMATCH", "UNKNOWN"])
def test_without_a_driver_there_are_no_figures_until_it_is_there(tmp_path: Path, error: str) -> None:
    out = TWO + fail("nvmlInitWithFlags", error)
    read, log = figures(tmp_path, (0, out), (1, TWO), (100, out), (200, TWO))

    assert read == [[], [], [], [A, B]]
    assert [line.split()[0] for line in log.splitlines()] == ["event=no-figures", "event=figures-back"]


def test_a_driver_restarted_under_the_process_is_opened_anew(tmp_path: Path) -> None:
    gone = TWO + fail("*", "UNINITIALIZED")
    read, _ = figures(tmp_path, (0, TWO), (10, gone), (100, gone), (200, TWO))

    assert read == [[A, B], [], [], [A, B]]


@pytest.mark.parametrize("error", ["NOT_SUPPORTED", "NO_PERMISSION"])
def test_a_figure_that_a_card_does_not_have_is_no_fault(tmp_path: Path, error: str) -> None:
    without = TWO + fail("nvmlDeviceGetUtilizationRates", error, "GPU-a")
    without += fail("nvmlDeviceGetMemoryInfo_v2", error, "GPU-b")
    read, log = figures(tmp_path, (0, without))

    assert read == [[{**A, "utilisation": None}, {**B, "memory_mib": None}]]
    assert log == ""


def test_a_card_without_any_figure_is_left_out(tmp_path: Path) -> None:
    assert figures(tmp_path, (0, TWO + fail("*", "NOT_SUPPORTED", "GPU-a")))[0] == [[B]]


def test_a_driver_without_the_newer_call_counts_its_own_memory_too(tmp_path: Path) -> None:
    old = TWO + fail("nvmlDeviceGetMemoryInfo_v2", "FUNCTION_NOT_FOUND")

    assert figures(tmp_path, (0, old))[0] == [[{**A, "memory_mib": 1700}, {**B, "memory_mib": 500}]]


def test_a_mig_instance_has_its_memory_and_no_utilisation(tmp_path: Path) -> None:
    card = "card GPU-a 37 1200 81920\nmig GPU-a MIG-1 1g.10gb 9728\n"
    read, log = figures(tmp_path, (0, card), uuids=("MIG-1",))

    assert read == [[{"uuid": "MIG-1", "utilisation": None, "memory_mib": 0, "scope": "shared"}]]
    assert log == ""


def test_a_figure_that_cannot_be_is_none(tmp_path: Path) -> None:
    """All ones is what NVML says of a card that it cannot read; the timekeeper would refuse the beat."""
    odd = f"card GPU-a {2**32 - 1} 1200 81920\ncard GPU-b 1 {2**43} {2**43}\n"

    assert figures(tmp_path, (0, odd))[0] == [
        [{**A, "utilisation": None}, {**B, "utilisation": 1, "memory_mib": None}]
    ]


def test_a_card_that_is_not_in_the_machine_is_reported(tmp_path: Path) -> None:
    read, log = figures(tmp_path, (0, TWO), uuids=("GPU-x", "GPU-b"))

    assert read == [[B]]
    assert log == 'event=card-silent uuid=GPU-x reason="Not Found"\n'


def test_beats_carry_the_figures_and_outlive_a_lost_card(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path
) -> None:
    nvml = fake_nvml(tmp_path, TWO)
    environ = variables(tmp_path, timekeeper.url, authority, NVIDIA_VISIBLE_DEVICES="GPU-a,GPU-b", **nvml)
    with beating(tmp_path, environ) as sidecar:
        timekeeper.wait(lambda: last_devices(timekeeper) == [A, B])
        describe(Path(nvml["BURSAR_FAKE_NVML"]), TWO + fail("*", "GPU_IS_LOST", "GPU-a"))
        timekeeper.wait(lambda: last_devices(timekeeper) == [B])
        seen = len(timekeeper.arrivals)
        timekeeper.wait(lambda: len(timekeeper.arrivals) >= seen + 3)

        assert sidecar.log().count("event=card-silent") == 1


def test_an_nvml_that_hangs_stops_neither_the_beats_nor_the_end(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path
) -> None:
    nvml = fake_nvml(tmp_path, TWO + "hang nvmlDeviceGetUtilizationRates\n")
    environ = variables(tmp_path, timekeeper.url, authority, NVIDIA_VISIBLE_DEVICES="GPU-a", **nvml)
    with beating(tmp_path, environ) as sidecar:
        timekeeper.wait(lambda: len(timekeeper.arrivals) >= 4)
        eventually(lambda: "nvml-hangs" in sidecar.log(), "the hang is said")
        code = sidecar.end()

    assert code == 0
    assert last_devices(timekeeper) == []
    assert sidecar.log().count("nvml-hangs") == 1


def test_without_a_readable_library_that_is_reported_once_and_beats_go_without_figures(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path
) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("hides the library of a machine that has one")
    environ = variables(tmp_path, timekeeper.url, authority, NVIDIA_VISIBLE_DEVICES="GPU-a")
    with beating(tmp_path, environ | {"LD_LIBRARY_PATH": str(tmp_path)}) as sidecar:
        timekeeper.wait(lambda: len(timekeeper.arrivals) >= 4)

        assert sidecar.log().count("event=no-figures") == 1
    assert all(beat["devices"] == [] for each in timekeeper.arrivals for beat in each.document["beats"])


def last_devices(timekeeper: Timekeeper) -> object:
    """The figures of the last beat that arrived."""
    return timekeeper.arrivals and timekeeper.arrivals[-1].document["beats"][-1]["devices"]
