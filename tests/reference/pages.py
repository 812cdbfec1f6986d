"""The pages with generated blocks, and what writes each block."""

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.reference import devices, flags, metrics, names, rest
from tests.reference.accelerators import accelerators
from tests.reference.blocks import written
from tests.reference.commands import connection
from tests.reference.rules import rules

DOCS = Path(__file__).parents[2] / "docs"

Blocks = Mapping[str, Callable[[], str]]
PAGES: Mapping[str, Blocks] = {
    "annotations.md": {
        "users": names.of_users,
        "administrators": names.of_administrators,
        "pods": names.of_pods,
        "nodes": names.of_nodes,
    },
    "api.md": {
        "routes": rest.routes,
        "statuses": rest.statuses,
        "report": rest.report,
        "focus": rest.focus,
    },
    "cli.md": {"flags": connection},
    "dialects.md": {"accelerators": accelerators},
    "enforcement.md": {"device annotations": devices.annotations},
    "explain.md": {"kinds of decisions": names.kinds_of_decisions},
    "metrics.md": {
        "webhook": metrics.of_webhook,
        "extender": metrics.of_extender,
        "timekeeper": metrics.of_timekeeper,
    },
    "node-agent.md": {"flags": flags.node},
    "rules.md": {"rules": rules},
    "settings.md": {
        "several": flags.several,
        "webhook": flags.webhook,
        "certificates": flags.certificate_process,
        "timekeeper": flags.ledger,
        "extender": flags.scheduler,
    },
}


def generated(page: str) -> str:
    """The whole text of a page as the code has it now."""
    return written((DOCS / page).read_text(), {name: make() for name, make in PAGES[page].items()})
