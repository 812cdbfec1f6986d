"""A benchmark as a command: its flags, and the file that its figures go into."""

import argparse
import json
from pathlib import Path


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
