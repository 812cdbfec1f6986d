"""The agent's access to the API server: calls and watches, an informer, the posting of Events, and a JSON
reader that drops what the agent does not need.

Imports `sidecar.node.state`. Decisions about what to write never belong here.
"""
