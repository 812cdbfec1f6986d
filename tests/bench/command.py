"""A benchmark as a command: its flags, and the file that its figures go into."""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any

from tests.deploy.reading import ROOT
from tests.support.shape import Installed, installed, shape_of


def arguments(about: str | None, **flags: tuple[int | float | str, str]) -> argparse.Namespace:
    """What the command line says: numbers or texts, each with its default and its meaning, and ``json``."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n\n")[0])
    for name, (default, meaning) in flags.items():
        text = f"{meaning} (%(default)s)".strip()
        parser.add_argument(f"--{name}", type=type(default), default=default, help=text)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


def write(file: Path | None, figures: object) -> None:
    """Write the figures where a file is named."""
    if file:
        file.write_text(json.dumps(figures, indent=1) + "\n")


TO_STDOUT = "--json=/dev/stdout"


@contextmanager
def timekeeper() -> Iterator[tuple[Installed, str]]:
    """The installed shape, and the URL of a new SQLite file on its volume."""
    with (
        TemporaryDirectory(prefix="bursar-bench-") as folder,
        installed(shape_of("timekeeper"), Path(folder)) as here,
    ):
        yield here, f"sqlite:///{folder}/ledger/ledger.db"


def figures(here: Installed, module: str, *flags: str, quiet: bool = False) -> Any:
    """The JSON that a benchmark writes to its standard output within a shape. ``quiet``: what it logs is
    shown where it fails."""
    command = [*here.prefix, sys.executable, "-m", f"tests.bench.{module}", *flags]
    with TemporaryFile("w+") as log:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log if quiet else None)
        if done.returncode:
            log.seek(0)
            raise SystemExit(log.read()[-3000:] or done.returncode)
    return json.loads(done.stdout)


@contextmanager
def started(command: list[str], log: IO[bytes]) -> Iterator["subprocess.Popen[bytes]"]:
    """The process of a command, which is killed at the end with all that it has started."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
