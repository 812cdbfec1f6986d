"""The audit: the ledger recomputed from its evidence, and every difference reported.

`evidence` computes each session's charge a second time; `charges`, `grants` and `carry` compare the rows with
it; `audit` runs all of them. May import ``store`` queries. Never here: functions that the settler charges
with.
"""
