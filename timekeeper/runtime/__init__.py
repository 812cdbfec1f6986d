"""What a process of any role needs in order to run; the second package that roles share, besides the core.

Lives here: log, clocks, flags, the HTTP server and its framing, TLS and renewed files, the clients of the API
server and of the timekeeper, elections by a Lease, Events. May import: ``timekeeper.core`` and
libraries. Only `kubeconfig` imports the `kubernetes` package; a process with a service account never loads
it. Never here: a decision about pods, cards or budgets, or a name of one role.
"""
