"""The REST API over the ledger.

Top to bottom: `create_app`; `resources` (a module a resource: routes, bodies, handlers), over `months`,
`nodes` and `would`, which several of them answer; `report_formats`; `sheets` (columns of tables, pure);
`http` (routes, parameters, answers, bodies, OpenAPI); `ledger` (reads and heartbeat writes). May import
`store` and what lies below it. Never here: the settler, which these workers meet only in the database.
"""
