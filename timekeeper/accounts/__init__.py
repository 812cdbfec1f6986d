"""What the ledger's rows mean, as functions of values: pods and sessions, budgets in force, postings,
balances, standings and reports.

Pure: imports the core and the standard library. Settler and API workers share it, so both compute the same
figures. Never here: a database, a clock, a log line, or the shape of an HTTP answer.
"""
