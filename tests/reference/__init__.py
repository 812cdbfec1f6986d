"""Reference pages from the code's own tables: ``python -m tests.reference`` writes, ``--check`` compares.

A page holds blocks between two comments, `blocks.begin` and `blocks.END`; everything else in it is written by
hand. A module here makes the text of its blocks: `PAGES` of `tests.reference.pages` lists all. Links from a
row to other pages stand in tables beside the generators; what a flag, a metric, a route, a name or a kind of
decision means stands in the code.
"""
