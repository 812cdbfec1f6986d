"""The serving process: gunicorn, routes, and what one worker remembers while it answers reviews.

May import everything but the other commands. Never here: rules or decisions, the client library of
Kubernetes, and waiting for another service while a review is answered.
"""
