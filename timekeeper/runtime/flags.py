"""The flags that every role has, with ``BURSAR_*`` environment variables as their defaults."""

import argparse
from collections.abc import Callable, Mapping, Sequence

from timekeeper.runtime.log import FORMATS


def one_of(choices: Sequence[str]) -> Callable[[str], str]:
    """Reads one of these words. argparse checks its own choices on the command line alone, and not what the
    environment says."""

    def read(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(
                f"invalid choice: {text!r} (choose from {', '.join(map(repr, choices))})"
            )
        return text

    return read


def add_log_format(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    """``--log-format``."""
    parser.add_argument(
        "--log-format",
        type=one_of(FORMATS),
        default=environment.get("BURSAR_LOG_FORMAT", FORMATS[0]),
        choices=FORMATS,
        help=f"format of the lines on stderr (default {FORMATS[0]}; BURSAR_LOG_FORMAT)",
    )
