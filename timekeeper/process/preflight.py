"""What `serve` does before anything serves: every setting that can be found wrong is, then the migrations
run. A process of its own, since what it imports is large, and is not needed again."""

from timekeeper.api_server import connect
from timekeeper.operations.migrate import migrate
from timekeeper.serving.tls import check_files
from timekeeper.settings import Settings


def prepare(settings: Settings) -> None:
    """Raises UnusableError with a sentence for the operator."""
    check_files(settings.tls_cert, settings.tls_key, settings.ca)
    connect(settings.kubeconfig)
    migrate(settings)
