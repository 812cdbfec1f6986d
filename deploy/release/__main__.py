"""``python -m deploy.release [FOLDER]`` writes the files of a release of the last commit into a folder, by
default ``dist``, and prints their SHA-256. With ``--page`` it writes docs/dependencies.md anew instead.
"""

import argparse
import hashlib
import sys
from pathlib import Path

from deploy.release import bill, dependencies
from deploy.release.archives import ROOT, ReleaseError, archives


def main() -> int:
    """The exit code. An error is one sentence on stderr."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist", help="(%(default)s)")
    parser.add_argument("--page", action="store_true", help="write docs/dependencies.md anew")
    arguments = parser.parse_args()
    try:
        if arguments.page:
            dependencies.PAGE.write_text(dependencies.page())
        else:
            _release(arguments.folder)
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _release(folder: Path) -> None:
    dependencies.demand_allowed_licences()
    made = archives(folder)
    bom = folder / f"{made.wheel.name.partition('-py3')[0]}.cdx.json"
    bom.write_text(bill.bill_of_materials(made.wheel, made.epoch_s))
    lines = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n"
        for file in (made.wheel, made.source, bom)
    ]
    (folder / "SHA256SUMS").write_text("".join(lines))
    print("".join(lines), end="")


if __name__ == "__main__":
    sys.exit(main())
