"""One module a page: it asks the REST API and arranges the answers for its template.

May import everything of the dashboard but `app`. Never here: HTML, cookies, and rights.
"""
