"""What would have happened to the pods of metered namespaces, had their budgets been enforced.

Pure: values in, values out. The rules are those of `core.admission`; `accounts.exhaustion` decides
who leaves.
"""
