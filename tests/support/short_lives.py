"""``python -m tests.support.short_lives CA LEAF OVERLAP FLAG...``: the certificate process, with certificates
that live and overlap for so many seconds."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from timekeeper.edge.log import configure, report_uncaught
from webhook.controller.run import run
from webhook.lifetimes import CertificateLifetimes
from webhook.settings.certificates import read_certificates

_DAY_S = 86_400


def program(overlap_s: int, ca_s: int = 3650 * _DAY_S, leaf_s: int = 365 * _DAY_S) -> tuple[str, ...]:
    """What ``python -m`` runs, in place of ``webhook certificates``."""
    return "tests.support.short_lives", str(ca_s), str(leaf_s), str(overlap_s)


def main(arguments: Sequence[str]) -> int:
    """Runs until it is ended; its exit code."""
    lives = CertificateLifetimes(*(timedelta(seconds=int(seconds)) for seconds in arguments[:3]))
    wanted = replace(read_certificates(arguments[3:], os.environ), lifetimes=lives)
    configure("certificates", wanted.log_format)
    report_uncaught()
    return run(wanted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
