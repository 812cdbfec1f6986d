"""The accelerators that no dialect reads."""

from tests.reference.blocks import table
from timekeeper.core.accelerators import ACCELERATORS, Accelerator


def accelerators() -> str:
    """The table in Markdown."""
    return table(("vendor", "resources", "one is"), map(_row, ACCELERATORS))


def _row(each: Accelerator) -> tuple[str, str, str]:
    return each.vendor, f"`{each.domain}/` with `{each.names}`", each.device
