"""The mutants written by hand."""

from tests.mutants.patches import Patch

PATCHES: tuple[Patch, ...] = ()
