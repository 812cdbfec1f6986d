"""What the sidecar loads: it runs once in every GPU pod, so each module is paid for many times."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from deploy.local.identity import LocalAuthority
from tests.nvml.build import fake_nvml
from tests.sidecar.worlds import ROOT, WITHIN_S, Timekeeper, variables

# Each takes 0.2 to 4 MiB; the reasons stand where the sidecar does without.
DEAR = {
    "argparse",
    "ctypes",
    "dataclasses",
    "datetime",
    "email",
    "encodings.idna",
    "http.client",
    "inspect",
    "logging",
    "pynvml",
    "queue",
    "random",
    "threading",
    "timekeeper.core",
    "timekeeper.runtime",
    "traceback",
    "typing",
    "urllib.parse",
}

# Runs until its first post is answered, ends itself as a kubelet would, and tells what it had loaded.
PROBE = """
import json, os, signal, sys
from sidecar import __main__, heartbeat_client
deliver = heartbeat_client.HeartbeatClient.deliver
def once(self, post):
    done = deliver(self, post)
    os.kill(os.getpid(), signal.SIGTERM)
    return done
heartbeat_client.HeartbeatClient.deliver = once
code = __main__.main([])
print(json.dumps([code, sorted(sys.modules)]))
"""


@pytest.mark.parametrize("cards", ["", "card GPU-a 37 1200 81920\n"], ids=["without cards", "with NVML"])
def test_nothing_dear_is_loaded_by_a_sidecar_that_beats(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path, cards: str
) -> None:
    more = fake_nvml(tmp_path, cards) | {"NVIDIA_VISIBLE_DEVICES": "GPU-a"} if cards else {}
    run = subprocess.run(
        [sys.executable, "-S", "-c", PROBE],
        cwd=ROOT,
        env=variables(tmp_path, timekeeper.url, authority, PYTHONPATH=sysconfig.get_path("purelib"), **more),
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=True,
    )

    code, loaded = json.loads(run.stdout)
    assert code == 0
    assert timekeeper.arrivals
    assert DEAR & set(loaded) <= ({"ctypes"} if cards else set())
