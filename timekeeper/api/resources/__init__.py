"""The handlers, one module per resource; each declares its routes as values and registers them.

May import every other room of the API. Never here: SQL, and parsing that `http.bodies` or `http.parameters`
can do.
"""
