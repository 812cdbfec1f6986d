"""Clocks that the test advances."""

T0 = 1_750_000_000_000
