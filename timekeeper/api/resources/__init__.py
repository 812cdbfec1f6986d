"""The handlers, one module per resource; each declares its routes as values and registers them.

May import all other packages of the API. Never here: SQL, and what `http.bodies` or `http.parameters` parse.
"""
