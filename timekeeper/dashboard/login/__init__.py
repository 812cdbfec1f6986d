"""The login by an OpenID Connect provider: authorization code with PKCE (docs/decisions/0073).

Nothing is remembered between two requests but in the browser's cookie and, once it is logged in, in the
database.
"""
