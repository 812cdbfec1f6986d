"""``python -m deploy.site FOLDER`` writes the site into a folder."""

import argparse
import subprocess
from pathlib import Path

from deploy.site.build import build


def main() -> None:
    """Exit code 1 where a page, a link or an anchor is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.site", description="Build the documentation's site."
    )
    parser.add_argument("folder", type=Path, help="where to write it; what is there is replaced")
    try:
        build(Path(__file__).parents[2], parser.parse_args().folder)
    except subprocess.CalledProcessError as error:
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
