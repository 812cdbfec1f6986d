"""Checks before ``serve`` starts anything: every setting that can be verified, then the migrations.

It is a process of its own, because its imports are large and needed only once.
"""

from timekeeper.operations.migrate import migrate
from timekeeper.runtime.connect import connect
from timekeeper.serving.tls import check_files
from timekeeper.settings import TimekeeperSettings


def prepare(settings: TimekeeperSettings) -> None:
    """Raises UnusableError with a sentence for the operator."""
    check_files(settings.tls_cert, settings.tls_key, settings.ca)
    connect(settings.kubeconfig)
    migrate(settings)
