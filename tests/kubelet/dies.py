"""``python -m tests.kubelet.dies ARCHIVE``: a node is set up, a container runs on it, a kernel setting is
changed; then the process waits to be killed, and leaves all that behind."""

import signal
import sys
from pathlib import Path

from deploy.local.leftovers import CGROUP
from deploy.local.node import Machine
from deploy.local.tools import NODE_TOOLS, cache_folder, find
from tests.kubelet.images import CUDA


def main(archive: Path) -> None:
    """Print the number of the container's process once all is there."""
    found = {tool.name: find(tool, {}, cache_folder()) for tool in NODE_TOOLS}
    with Machine({name: path for name, path in found.items() if path}) as machine:
        machine.load(archive)
        Path("/proc/sys/kernel/panic").write_text(str(CHANGED))
        program = ["python", "-c", "import time; time.sleep(600)"]
        options = ["--detach", f"--cgroup=/{CGROUP}/left", f"--runc-binary={machine.tools['runc']}"]
        machine.ctr("run", *options, CUDA, "left", *program)
        print(*machine.ctr("tasks", "ls").stdout.splitlines()[1:], flush=True)
        signal.pause()


CHANGED = 77  # seconds; nobody sets that

if __name__ == "__main__":
    main(Path(sys.argv[1]))
