"""``make bench``: every benchmark at its ordinary size, a table each on the screen, the JSON under
``.bench``. ``make bench PEER=gas=PATH`` puts another extender beside ours, whose binary is built
elsewhere."""

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
OUT = HERE.parent.parent / ".bench"

# name of the JSON -> the module and its arguments
BENCHMARKS = {
    "admission": ["admission"],
    "extender-500": ["extender", "--nodes", "500", "--cards", "8", "--pods", "1000"],
    "extender-5000": ["extender", "--nodes", "5000", "--cards", "8", "--pods", "40000"],
    "placement": ["placement"],
    "scarce": ["scarce"],
    "throughput-500": ["throughput", "--nodes", "500", "--pods", "2000"],
    "throughput-2000": ["throughput", "--nodes", "2000", "--pods", "2000"],
    "binding": ["binding"],
    "heartbeats": ["heartbeats"],
    "reports": ["reports"],
    "dashboard": ["dashboard"],
    "ledger": ["ledger"],
    "sidecar": ["sidecar"],
    "agent": ["agent"],
    "cost": ["cost"],
    "exponents": ["exponents"],
}

# the same, where a peer is given
BESIDE_A_PEER = {
    "peer-5000": ["peers", "--nodes", "5000", "--pods", "40000"],
}


def main() -> int:
    """Runs them one after another; the exit code is that of the first that fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--peer", default="", help="gas=PATH: the binary of Intel's GPU Aware Scheduling")
    peer = parser.parse_args().peer
    beside = {name: [*each, "--peer", peer] for name, each in BESIDE_A_PEER.items()} if peer else {}
    OUT.mkdir(exist_ok=True)
    for name, (module, *arguments) in (BENCHMARKS | beside).items():
        print(f"\n== {name}", flush=True)
        command = [
            sys.executable,
            "-m",
            f"tests.bench.{module}",
            *arguments,
            "--json",
            str(OUT / f"{name}.json"),
        ]
        code = subprocess.run(command, cwd=HERE.parent.parent).returncode
        if code:
            return code
    print(f"\nJSON: {OUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
