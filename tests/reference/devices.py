"""The annotations from which container runtimes and their plugins read devices."""

from tests.reference.blocks import table
from timekeeper.core.admission.rules.device_annotations import DEVICE_ANNOTATIONS, shown_as


def annotations() -> str:
    """The table of readers in Markdown."""
    return table(
        ("annotations", "read by"),
        (
            (", ".join(f"`{shown_as(word)}`" for word in each.words), each.reader)
            for each in DEVICE_ANNOTATIONS
        ),
    )
