"""The agent as a process, without an API server: it stays, and it ends as it is told."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local.limits import LONGEST_S
from deploy.local.ports import free_port
from tests.nvml import fake_nvml
from tests.sidecar.worlds import ROOT
from tests.support.waiting import eventually


def command(port: int, *flags: str) -> list[str]:
    told = ["--node-name=n1", "--api-url=https://127.0.0.1:1", f"--listen=127.0.0.1:{port}", *flags]
    return [sys.executable, "-m", "sidecar.node", *told]


def environment(nvml: dict[str, str]) -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if name.startswith("COVERAGE_")}
    return {"PATH": os.environ.get("PATH", os.defpath), **kept, **nvml}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_without_driver_and_api_server_it_says_so_and_goes_on_until_it_is_ended(
    tmp_path: Path, number: signal.Signals
) -> None:
    nvml = fake_nvml(tmp_path, "fail nvmlInitWithFlags DRIVER_NOT_LOADED\n")
    log = tmp_path / "log"
    with log.open("wb") as file:
        agent = subprocess.Popen(command(free_port()), cwd=ROOT, env=environment(nvml), stderr=file)
    try:
        eventually(
            lambda: log.read_text().count("event=not-followed") == 2 and "reader-silent" in log.read_text()
        )
        agent.send_signal(number)

        assert agent.wait(timeout=LONGEST_S) == 0
    finally:
        agent.kill()
        agent.wait()
    assert log.read_text().count("event=reader-silent") == 1
    assert "Traceback" not in log.read_text()


def test_a_port_that_is_taken_is_one_sentence_and_code_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = subprocess.run(
            command(taken.getsockname()[1]),
            cwd=ROOT,
            env=environment(fake_nvml(tmp_path, "")),
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
        )

    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "Address already in use" in done.stderr


def test_a_wrong_flag_is_one_sentence_and_code_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sidecar.node"],
        cwd=ROOT,
        env=environment({}),
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )

    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.mark.gpu
def test_the_cards_of_a_real_driver_are_listed_and_healthy() -> None:
    """What the fake promises of each call, by a real library."""
    code = (
        "from sidecar.node.nvml.cards import NvmlReader;"
        "reader = NvmlReader(lambda: 0); seen = reader.look();"
        "print(seen.error, len(seen.cards), len(seen.loads),"
        " all(card.healthy and card.memory_mib for card in seen.cards))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    if "libnvidia-ml" in told:
        pytest.skip("no NVIDIA driver on this machine")
    *_, cards, loads, well = told.split()

    assert int(cards) == int(loads) >= 1
    assert well == "True"
