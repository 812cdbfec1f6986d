"""``python -m tests.kubelet.dies ARCHIVE``: a node is set up, a container runs on it, a kernel setting is
changed; then the process waits to be killed, and leaves all that behind."""

import os
import signal
import sys
from pathlib import Path

from deploy.local.cleanup import CGROUP, FOLDER
from deploy.local.real_node import NodeHost
from deploy.local.tools import NODE_TOOLS, cache_folder, find
from tests.kubelet.images import CUDA

PANIC = Path("/proc/sys/kernel/panic")
CHANGED = "77"  # seconds; nobody sets that


def main(archive: Path) -> None:
    """Print the number of the container's process and what the kernel setting was, once all is there."""
    found = {tool.name: find(tool, os.environ, cache_folder()) for tool in NODE_TOOLS}
    with NodeHost({name: path for name, path in found.items() if path}) as machine:
        machine.load(archive)
        before = PANIC.read_text().strip()
        PANIC.write_text(CHANGED)
        print(run(machine), before, flush=True)
        signal.pause()


def run(machine: NodeHost) -> int:
    """Start the container; the number of its process."""
    # The client's own choices of folders lie outside of the node's, where the state of one that was killed
    # would be in the way of the next of the same name.
    ours = ["--null-io", f"--runc-root={FOLDER}/runc", f"--runc-binary={machine.tools['runc']}"]
    program = ["python", "-c", "import time; time.sleep(600)"]
    done = machine.ctr("run", "--detach", f"--cgroup=/{CGROUP}/left", *ours, CUDA, "left", *program)
    if done.returncode:
        raise SystemExit(f"the container does not run: {done.stderr}")
    # "TASK    PID     STATUS", then "left    4711    RUNNING"
    return int(machine.ctr("tasks", "ls").stdout.splitlines()[1].split()[1])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
