"""The REST API over the ledger.

Top to bottom: `create_app` and `route_table`; ``resources`` (one module per resource); ``formats`` and
``bodies``; ``http`` (routes, parameters, answers, OpenAPI); ``ledger`` (reads and heartbeat writes);
``auth``; `problem`. May import ``store`` and what lies below it. Never here: the settler, which these workers
meet only in the database.
"""
