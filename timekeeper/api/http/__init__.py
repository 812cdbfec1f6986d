"""Routes, parameters, answers and the OpenAPI document, which is made from their declarations.

May import `ledger`, `runtime.auth` and `runtime.http.problem_details`. Never here: a particular resource.
"""
