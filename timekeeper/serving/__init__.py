"""The serving workers' process: the REST API and the heartbeats' route, over TLS.

May import the API, the store and everything below. Never here: what a route answers (`timekeeper.api`), and
how requests are received and answers sent (`timekeeper.runtime.http.loop`).
"""
