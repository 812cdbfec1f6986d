"""What the sidecar loads: it runs once in every GPU pod, so each module is paid for many times."""

import json
import subprocess
import sys
from pathlib import Path

from deploy.local.identity import LocalAuthority
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


def test_nothing_dear_is_loaded_by_a_sidecar_that_beats(
    timekeeper: Timekeeper, authority: LocalAuthority, tmp_path: Path
) -> None:
    run = subprocess.run(
        [sys.executable, "-S", "-c", PROBE],
        cwd=ROOT,
        env=variables(tmp_path, timekeeper.url, authority),
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=True,
    )

    code, loaded = json.loads(run.stdout)
    assert code == 0
    assert timekeeper.arrivals
    assert DEAR & set(loaded) == set()
