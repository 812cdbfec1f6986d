"""What something costs.

`rating` is the chain of steps that everybody asks. Its steps read what a node says of its cards (`nodes`),
which part of a GPU a claim's device is (`devices`), which part of a card an amount is (`parts`), and what
models weigh (`weights`). `allocations` rates a whole claim, and `held` counts what caps limit.
"""
