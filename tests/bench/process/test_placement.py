"""The placement benchmark as a command."""

import json
import subprocess
import sys
from pathlib import Path

from tests.bench import placement
from tests.bench.unit.test_placement import arguments


def test_the_command_writes_one_object_and_takes_fragmentation_by_default(files: Path) -> None:
    command = [sys.executable, "-m", placement.__name__, *arguments(files, "--json", f"{files}/out.json")]

    done = subprocess.run(
        command, cwd=Path(placement.__file__).parents[2], capture_output=True, text=True, check=True
    )

    found = json.loads((files / "out.json").read_text())
    assert found == json.loads(done.stdout)
    assert found["policy"] == "fragmentation"
    assert set(found["allocation"]) == {"95", "100", "130"}
    assert set(found["failed"]) == {"cpu", "share", "one", "several"}
