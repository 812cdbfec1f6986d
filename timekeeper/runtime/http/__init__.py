"""HTTP/1.1 for the servers of webhook, extender and timekeeper: framing, one loop a process, and the routes
that a role gives it.

Lives here: the bounds and rules of heads and bodies (`framing`), who accepts clients (`acceptor`), a client's
`connection`, the `loop`, its handlers and their threads (`queues`), WSGI applications (`wsgi_gateway`), what
a role serves (`service`), gunicorn's master (`server`), errors for callers (`problem_details`). May import
the rest of `timekeeper.runtime`. Never here: a role's routes, and anything about pods, budgets or cards.
"""
