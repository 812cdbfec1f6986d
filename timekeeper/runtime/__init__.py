"""What a process of any role needs in order to run; the second package that roles share, besides the core.

Lives here: the API server's clock, flags, the HTTP server and its framing, TLS and renewed files, the clients
of the API server, the timekeeper and Prometheus, authentication. May import: `timekeeper.core`,
`timekeeper.edge` (log, clocks, watches, Leases, Events) and libraries. Only `kubeconfig` imports the client
library of Kubernetes; a process with a service account never loads it. Never here: a decision about pods,
cards or budgets, or a name of one role.
"""
