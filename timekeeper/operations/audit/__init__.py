"""For whoever answers for the ledger: it is recomputed from the evidence, written out and read in, backed up,
and its old part folded.

`evidence` says a second time what each session owes, `charges` and `grants` hold the rows against it,
`audit` goes through all of them; `commands` is what an operator calls.
"""
