"""The accelerators that no dialect reads."""

from tests.reference.blocks import table
from timekeeper.core.accelerators import ACCELERATORS, Accelerator

# by domain, where the regular expression is long
IN_WORDS = {
    "amd.com": "`gpu`, `(spx|dpx|tpx|qpx|cpx)_nps[1248]`, and the product, as in `mi300x`",
    "nvidia.com": "the product, as in `a100-80gb`, `rtx-4090`; `gpu-10gb`; KubeVirt's `pgpu`, `GA102GL_A10`",
}


def accelerators() -> str:
    """The table in Markdown."""
    return table(("vendor", "resources", "one is"), map(_row, ACCELERATORS))


def _row(row: Accelerator) -> tuple[str, str, str]:
    return row.vendor, f"`{row.domain}/` with {IN_WORDS.get(row.domain, f'`{row.names}`')}", row.device
