"""``make bench``: every benchmark at its ordinary size, a table each on the screen, the JSON under
``.bench``."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
OUT = HERE.parent.parent / ".bench"

# name of the JSON -> the script and its arguments
BENCHMARKS = {
    "admission-tls": ["admission_tls.py"],
    "admission": ["admission.py"],
    "extender-500": ["extender.py", "--nodes", "500", "--cards", "8", "--pods", "1000"],
    "extender-5000": ["extender.py", "--nodes", "5000", "--cards", "8", "--pods", "40000"],
    "dialects": ["dialects.py"],
    "placement": ["placement.py"],
    "throughput-500": ["throughput.py", "--nodes", "500", "--pods", "2000"],
    "throughput-2000": ["throughput.py", "--nodes", "2000", "--pods", "2000"],
    "waiting": ["waiting.py"],
    "releases": ["releases.py"],
    "recording": ["recording.py"],
    "enforcement": ["enforcement.py"],
    "reclaim": ["reclaim.py"],
    "heartbeats": ["heartbeats.py"],
    "standings": ["standings.py"],
    "reports": ["reports.py"],
    "dashboard": ["dashboard.py"],
    "ledger": ["ledger.py"],
    "sidecar": ["sidecar.py"],
    "agent": ["agent.py"],
    "cost": ["cost/__main__.py"],
}


def main() -> int:
    """Runs them one after another; the exit code is that of the first that fails."""
    OUT.mkdir(exist_ok=True)
    for name, (script, *arguments) in BENCHMARKS.items():
        print(f"\n== {name}", flush=True)
        command = [sys.executable, str(HERE / script), *arguments, "--json", str(OUT / f"{name}.json")]
        code = subprocess.run(command, cwd=HERE.parent.parent).returncode
        if code:
            return code
    print(f"\nJSON: {OUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
