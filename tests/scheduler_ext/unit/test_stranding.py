"""Whose pods keep a node's free cards from being used: the parts are exact, and nobody's where nothing is
stranded."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scheduler_ext.worlds import node, percent, placed
from tests.scheduler_ext.worlds import snapshot as snapshot_of
from scheduler_ext.scoring.stranding import shares, stranded_by

Json = dict[str, Any]
