"""The comparison with another project's extender: what is summed over its processes."""

import subprocess
import sys

from tests.bench.peers import spent_s


def test_the_processor_time_of_a_process_is_also_that_of_its_children() -> None:
    loop = "import time\nwhile time.process_time() < 0.3: pass\n"
    ended = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {loop!r}])\n"
    runs = f"subprocess.Popen([sys.executable, '-c', {loop + 'print(flush=True); input()'!r}])\ninput()\n"
    command = [sys.executable, "-c", ended + runs]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()

        spent = spent_s(process.pid)
        process.communicate(b"\n\n")

    assert 0.6 <= spent < 3.0
