"""The REST API over the ledger.

Top to bottom: `create_app`; ``resources`` (a module a resource: routes, bodies, handlers); `report_formats`;
``http`` (routes, parameters, answers, posts, OpenAPI); ``ledger`` (reads and heartbeat writes); `peers`. May
import ``store`` and what lies below it. Never here: the settler, which these workers meet only in the
database.
"""
