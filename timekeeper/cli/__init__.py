"""``kubectl bursar``: budgets, use, grants and the state of an installation, for people with a kubeconfig.

It reads the REST API as any other caller does, and asks kubectl for a token, the CA and a connection. It may
import `timekeeper.core` and libraries. Never here: the database, or a rule that decides anything.
"""
