"""The node's cards, by NVIDIA's own binding and a library that does as a file says."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.nvml.build import SOURCE
from tests.sidecar.worlds import ROOT, read_by_nvml

TWO = "card GPU-a 37 1200 81920\ncard GPU-b 0 0 40960\n"
MIG = "mig GPU-b MIG-1 1g.5gb 4864\nmig GPU-b MIG-2 2g.10gb 9856\n"

# Looks at each of the moments, the cards being as the description says; a step of "wait" waits for an event.
READER = """
import json, os, sys
from sidecar.node.nvml.cards import NvmlReader
reopen_ms, steps = json.loads(sys.argv[1])
now = [0]
reader = NvmlReader(lambda: now[0], reopen_ms=reopen_ms)

def plain(each):
    if isinstance(each, tuple):
        return [plain(part) for part in each]
    slots = getattr(type(each), "__slots__", None)
    return {name: plain(getattr(each, name)) for name in slots} if slots else each

for moment, description, word in steps:
    now[0] = moment
    with open(os.environ["BURSAR_FAKE_NVML"], "w") as file:
        file.write(description)
    print(json.dumps(plain(reader.look() if word == "look" else reader.wait(50))))
"""


def read(tmp_path: Path, *steps: tuple[int, str, str], reopen_ms: int = 100) -> list[Any]:
    """What one process reads in each step."""
    return read_by_nvml(tmp_path, READER, [reopen_ms, steps])[0]


def look(tmp_path: Path, description: str) -> Any:
    """What one look gives."""
    return read(tmp_path, (0, description, "look"))[0]


def by_uuid(looked: Any) -> dict[str, Any]:
    return {card["uuid"]: card for card in looked["cards"]}


def test_a_card_is_reported_with_model_memory_and_index(tmp_path: Path) -> None:
    cards = look(tmp_path, TWO + "model GPU-a NVIDIA H100 80GB HBM3\n")["cards"]

    assert cards[0] == {
        "uuid": "GPU-a",
        "index": 0,
        "model": "NVIDIA H100 80GB HBM3",
        "memory_mib": 81_920,
        "healthy": True,
        "fault": "",
        "numa": None,
        "links": None,
        "mig": None,
        "paths": [],
    }
    assert (cards[1]["uuid"], cards[1]["index"], cards[1]["memory_mib"]) == ("GPU-b", 1, 40_960)


def test_numa_nodes_beyond_the_first_64_are_read_and_none_where_nvml_has_none(tmp_path: Path) -> None:
    cards = by_uuid(look(tmp_path, TWO + "numa GPU-a 70\n"))

    assert (cards["GPU-a"]["numa"], cards["GPU-b"]["numa"]) == (70, None)


@pytest.mark.parametrize(
    ("joint", "level", "links"),
    [
        ("nvlink", 0, ["GPU-b"]),
        ("0", 1, ["GPU-b"]),
        ("10", 1, ["GPU-b"]),
        ("20", 2, ["GPU-b"]),
        ("30", 3, []),
        ("40", 4, []),
        ("50", 5, []),
    ],
)
def test_cards_are_linked_by_nvlink_or_by_pcie_switches_and_not_through_a_cpu(
    tmp_path: Path, joint: str, level: int, links: list[str]
) -> None:
    """Their paths are the levels of the PCIe tree: one switch, several, a host bridge, a NUMA node."""
    cards = by_uuid(look(tmp_path, TWO + f"link GPU-a GPU-b {joint}\n"))

    assert (cards["GPU-a"]["links"], cards["GPU-a"]["paths"]) == (links, [["GPU-b", level]])
    assert bool(cards["GPU-b"]["links"]) == bool(links)
    assert cards["GPU-b"]["paths"] == [["GPU-a", level]]


def test_links_are_unknown_where_nvml_reports_none(tmp_path: Path) -> None:
    assert by_uuid(look(tmp_path, TWO))["GPU-a"]["links"] is None


def test_a_divided_card_is_reported_as_its_instances_each_with_its_own_memory_and_index(
    tmp_path: Path,
) -> None:
    seen = look(tmp_path, TWO + MIG + "model GPU-b NVIDIA A100-SXM4-40GB\nnuma GPU-b 1\n")
    cards = by_uuid(seen)

    assert seen["divided"] == ["GPU-b"]
    assert set(cards) == {"GPU-a", "MIG-1", "MIG-2"}
    assert cards["MIG-2"] == {
        "uuid": "MIG-2",
        "index": 201,
        "model": "NVIDIA A100-SXM4-40GB MIG 2g.10gb",
        "memory_mib": 9856,
        "healthy": True,
        "fault": "",
        "numa": 1,
        "links": [],
        "mig": "2g.10gb",
        "paths": [],
    }


def test_processes_have_memory_and_their_part_of_the_cards_time_where_nvml_reports_it(tmp_path: Path) -> None:
    processes = "process GPU-a 100 2000 40\nprocess GPU-a 101 - -\nprocess MIG-1 102 55 3\nmps GPU-a 103\n"
    seen = look(tmp_path, TWO + MIG + processes)

    assert [list(each.values()) for each in seen["processes"]] == [
        [100, "GPU-a", 2000, 40],
        [101, "GPU-a", None, 0],
        [103, "GPU-a", None, 0],
        [102, "MIG-1", 55, None],
    ]
    assert seen["mps"] == ["GPU-a"]


def test_a_card_without_samples_of_processes_reports_no_part_of_its_time(tmp_path: Path) -> None:
    unable = "fail nvmlDeviceGetProcessUtilization NOT_SUPPORTED GPU-a\n"
    (process,) = look(tmp_path, TWO + "process GPU-a 100 2000 40\n" + unable)["processes"]

    assert process["utilisation"] is None


def test_loads_leave_out_what_the_driver_keeps_for_itself(tmp_path: Path) -> None:
    assert look(tmp_path, TWO)["loads"] == [
        {"uuid": "GPU-a", "utilisation": 37, "memory_mib": 1200},
        {"uuid": "GPU-b", "utilisation": 0, "memory_mib": 0},
    ]


@pytest.mark.parametrize("call", ["*", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetMemoryInfo_v2"])
def test_a_lost_card_is_silent_for_sure_under_its_name_and_the_others_are_reported(
    tmp_path: Path, call: str
) -> None:
    _, lost = read(tmp_path, (0, TWO, "look"), (1, f"{TWO}fail {call} GPU_IS_LOST GPU-a\n", "look"))

    assert [card["uuid"] for card in lost["cards"]] == ["GPU-b"]
    assert lost["silent"] == [{"index": 0, "uuid": "GPU-a", "reason": "GPU is lost", "sure": True}]


def test_an_unknown_error_of_a_card_is_no_proof_against_it(tmp_path: Path) -> None:
    odd = look(tmp_path, TWO + "fail nvmlDeviceGetMemoryInfo_v2 UNKNOWN GPU-a\n")

    assert odd["silent"] == [{"index": 0, "uuid": "GPU-a", "reason": "Unknown Error", "sure": False}]


def test_nvml_is_opened_anew_for_a_card_that_is_silent_and_no_more_often_than_that(tmp_path: Path) -> None:
    lost = TWO + "fail nvmlDeviceGetMemoryInfo_v2 GPU_IS_LOST GPU-a\n"
    away = lost + "fail nvmlInitWithFlags DRIVER_NOT_LOADED\n"
    seen = read(tmp_path, (0, lost, "look"), (99, away, "look"), (100, away, "look"), (101, TWO, "look"))

    assert [each["error"] for each in seen] == ["", "", "Driver Not Loaded", ""]
    assert set(by_uuid(seen[3])) == {"GPU-a", "GPU-b"}


GONE = "fail nvmlInitWithFlags DRIVER_NOT_LOADED\n"  # which shows at the moment at which NVML is opened anew
LOST = TWO + "fail nvmlDeviceGetMemoryInfo_v2 GPU_IS_LOST GPU-a\n"


def test_nvml_is_opened_ever_less_often_while_a_card_stays_silent(tmp_path: Path) -> None:
    """Before 100, at 300 and 700 s it is opened; from then on each 300 s, be it for days."""
    opened = [(at, LOST, "look") for at in (0, 100_000, 300_000, 600_000)]
    kept = [(at - 1, LOST + GONE, "look") for at in (100_000, 300_000, 600_000, 900_000)]
    steps = sorted(opened + kept, key=lambda step: step[0])
    *seen, last = read(tmp_path, *steps, (900_000, LOST + GONE, "look"), reopen_ms=100_000)

    assert [each["error"] for each in seen] == [""] * len(steps)
    assert last["error"] == "Driver Not Loaded"


def test_a_second_card_that_falls_silent_is_not_waited_for_as_long_as_the_first(tmp_path: Path) -> None:
    both = LOST + "fail nvmlDeviceGetMemoryInfo_v2 GPU_IS_LOST GPU-b\n"
    waited = [(0, LOST, "look"), (100, LOST, "look"), (150, both, "look")]
    *_, kept, opened = read(tmp_path, *waited, (199, both + GONE, "look"), (200, both + GONE, "look"))

    assert (kept["error"], opened["error"]) == ("", "Driver Not Loaded")


def test_an_xid_from_before_nvml_is_opened_anew_is_reported_after_it(tmp_path: Path) -> None:
    xid = LOST + "event 1 GPU-b 8 79\nevent 2 GPU-b 8 31\nevent 3 GPU-b 2 0\n"
    looks = [(0, LOST, "look"), (100, xid, "look")]
    _, _, *told = read(tmp_path, *looks, *[(moment, xid, "wait") for moment in (101, 102, 103)])

    ecc = {"uuids": ["GPU-b"], "fault": "a double-bit ECC error"}
    assert told == [{"uuids": ["GPU-b"], "fault": "XID 79"}, ecc, None]


def test_an_xid_that_comes_while_another_card_goes_is_reported(tmp_path: Path) -> None:
    gone = TWO + "fail nvmlDeviceGetHandleByIndex_v2 GPU_IS_LOST GPU-a\nevent 1 GPU-b 8 79\n"
    _, _, told, nothing = read(
        tmp_path, (0, TWO, "look"), (1, gone, "look"), (2, gone, "wait"), (3, gone, "wait")
    )

    assert (told, nothing) == ({"uuids": ["GPU-b"], "fault": "XID 79"}, None)


def test_an_xid_is_reported_also_where_waiting_for_it_failed_before(tmp_path: Path) -> None:
    lost = TWO + "fail nvmlEventSetWait_v2 GPU_IS_LOST\nevent 1 GPU-b 8 79\n"
    back = TWO + "event 1 GPU-b 8 79\n"
    _, failed, _, told = read(
        tmp_path, (0, TWO, "look"), (1, lost, "wait"), (2, back, "look"), (3, back, "wait")
    )

    assert (failed, told) == (None, {"uuids": ["GPU-b"], "fault": "XID 79"})


def test_an_xid_from_before_a_driver_was_unloaded_is_reported_by_the_look_that_received_it(
    tmp_path: Path,
) -> None:
    gone = TWO + "event 1 GPU-b 8 79\nfail nvmlDeviceGetCount_v2 UNINITIALIZED\n"
    _, out, told = read(tmp_path, (0, TWO, "look"), (1, gone, "look"), (2, gone, "wait"))

    assert (out["error"], told) == ("Uninitialized", {"uuids": ["GPU-b"], "fault": "XID 79"})


@pytest.mark.parametrize("error", ["DRIVER_NOT_LOADED", "LIB_RM_VERSION_MISMATCH", "UNKNOWN"])
def test_nvml_that_fails_as_a_whole_is_reported_as_an_error_and_tried_at_the_next_look(
    tmp_path: Path, error: str
) -> None:
    out, back = read(tmp_path, (0, f"{TWO}fail nvmlInitWithFlags {error}\n", "look"), (1, TWO, "look"))

    assert (out["cards"], bool(out["error"])) == ([], True)
    assert (len(back["cards"]), back["error"]) == (2, "")


def test_a_driver_that_is_unloaded_under_the_agent_is_reported_and_found_again(tmp_path: Path) -> None:
    gone = TWO + "fail nvmlDeviceGetCount_v2 UNINITIALIZED\n"
    _, out, back = read(tmp_path, (0, TWO, "look"), (1, gone, "look"), (2, TWO, "look"))

    assert out["error"] == "Uninitialized"
    assert len(back["cards"]) == 2


def test_without_the_library_the_look_says_so() -> None:
    code = "from sidecar.node.nvml.cards import NvmlReader; print(NvmlReader(lambda: 0).look().error)"
    environ = {name: text for name, text in os.environ.items() if name != "LD_LIBRARY_PATH"}
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True, check=True
    ).stdout

    if "libnvidia-ml" not in said:
        pytest.skip("this machine has NVIDIA's driver")
    assert "cannot open shared object file" in said


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("remap-failed GPU-a", "rows of its memory could not be remapped"),
        ("recovery GPU-a 1", "the driver requires a reset of the GPU"),
        ("recovery GPU-a 99", "the driver requires recovery action 99"),
    ],
)
def test_what_the_driver_says_against_a_card_is_its_fault(tmp_path: Path, words: str, fault: str) -> None:
    card = by_uuid(look(tmp_path, f"{TWO}{words}\n"))["GPU-a"]

    assert (card["healthy"], card["fault"]) == (False, fault)


def test_a_card_that_the_driver_wants_nothing_done_with_is_at_rest(tmp_path: Path) -> None:
    assert look(tmp_path, TWO + "recovery GPU-a 0\nrecovery GPU-b 1\n")["at_rest"] == ["GPU-a"]


def test_an_xid_breaks_its_card_and_one_of_a_program_breaks_none(tmp_path: Path) -> None:
    events = "event 1 GPU-a 8 31\nevent 2 GPU-a 8 79\nevent 3 GPU-b 2 0\n"
    waits = [(moment, TWO + events, "wait") for moment in (1, 2, 3)]
    _, xid, ecc, nothing = read(tmp_path, (0, TWO, "look"), *waits)

    assert xid == {"uuids": ["GPU-a"], "fault": "XID 79"}
    assert ecc == {"uuids": ["GPU-b"], "fault": "a double-bit ECC error"}
    assert nothing is None


def test_an_xid_of_a_divided_card_breaks_all_of_its_instances(tmp_path: Path) -> None:
    event = "event 1 GPU-b 8 79\n"
    _, told = read(tmp_path, (0, TWO + MIG, "look"), (1, TWO + MIG + event, "wait"))

    assert told["uuids"] == ["MIG-1", "MIG-2"]


def test_an_xid_of_a_card_that_no_longer_gives_its_name_breaks_that_card(tmp_path: Path) -> None:
    lost = TWO + "event 1 GPU-b 8 79\nfail nvmlDeviceGetUUID GPU_IS_LOST GPU-b\n"
    _, told = read(tmp_path, (0, TWO, "look"), (1, lost, "wait"))

    assert told == {"uuids": ["GPU-b"], "fault": "XID 79"}


def test_events_of_the_cards_that_send_them_are_received_where_others_send_none(tmp_path: Path) -> None:
    unable = TWO + "fail nvmlDeviceGetSupportedEventTypes NOT_SUPPORTED GPU-a\n"
    _, told = read(tmp_path, (0, unable, "look"), (1, unable + "event 1 GPU-b 8 48\n", "wait"))

    assert told == {"uuids": ["GPU-b"], "fault": "XID 48"}


def test_a_driver_without_events_is_only_looked_at(tmp_path: Path) -> None:
    unable = TWO + "fail nvmlEventSetCreate NOT_SUPPORTED\n"
    seen, told = read(tmp_path, (0, unable, "look"), (1, unable + "event 1 GPU-b 8 48\n", "wait"))

    assert (len(seen["cards"]), told) == (2, None)


def test_an_instance_made_later_is_reported_at_the_next_look(tmp_path: Path) -> None:
    seen = read(tmp_path, (0, TWO, "look"), (1, TWO + MIG, "look"))

    assert [sorted(by_uuid(each)) for each in seen] == [["GPU-a", "GPU-b"], ["GPU-a", "MIG-1", "MIG-2"]]


def test_the_fake_library_offers_every_function_that_we_call() -> None:
    """By what NVIDIA's binding looks up for each function of it that our code names."""
    code = "\n".join(file.read_text() for file in (ROOT / "sidecar").rglob("*.py"))
    named = set(re.findall(r"\.(nvml[A-Z]\w+)\(", code))
    offered = set(re.findall(r"^(?:int|const char \*)\s*(nvml\w+)\(", SOURCE.read_text(), re.MULTILINE))

    assert len(named) > 20
    assert {name: looked_up(name) for name in named if not looked_up(name) <= offered} == {}


def looked_up(name: str) -> set[str]:
    """The symbols of the library that a function of the binding asks for, itself or by another."""
    text = inspect.getsource(getattr(pynvml, name))
    body = text.partition("\n")[2]
    called = {each for each in re.findall(r"\b(nvml[A-Z]\w+)\(", body) if each != name}
    found = set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"', body))
    for each in called:
        if inspect.isfunction(getattr(pynvml, each, None)) and not each.startswith("nvmlStruct"):
            found |= looked_up(each)
    return found
