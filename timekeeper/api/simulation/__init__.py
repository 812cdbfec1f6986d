"""``POST /v1/simulate``: the route, and what webhook, extender and ledger say put together.

May import the other resources. Never here: a write, or a decision that a role takes itself.
"""
