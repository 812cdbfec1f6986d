"""Every body that Bursar's roles and their callers exchange over HTTP, each declared once, as a Struct of
msgspec: its type, its check and its part of the API's document.

May import `timekeeper.core`. Not imported by `kubectl bursar`, the sidecar and the node agent, which write
these bodies with the standard library alone.
"""
