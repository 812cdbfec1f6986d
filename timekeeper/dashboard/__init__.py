"""The dashboard: pages for people at `/`, written from the answers of the REST API.

Top to bottom: `app` (the WSGI application); `pages` (one module a page) beside `login`; `visits` (a request's
session, API and scope); `responses` (templates, problems, redirections); `charts` (pure); `api_caller`;
`sessions` (cookies and form tokens). It calls the REST API in this process with the visitor's own token, so
it shows what that token may read and nothing else. Never here: SQL, rights, and any figure that the REST API
does not give.
"""
