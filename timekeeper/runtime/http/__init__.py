"""HTTP/1.1 for the servers of webhook, extender and timekeeper: framing, one gunicorn worker, and the routes
that a role gives it.

Lives here: the bounds and rules of heads and bodies (`framing`), a client's connection, the loop and its
pools (`worker`), what a role serves (`service`), gunicorn's master (`server`) and its log. May import the
rest of ``timekeeper.runtime``. Never here: a role's routes, and anything about pods, budgets or cards.
"""
