"""The pure half of a dry run: text to documents, documents to outcomes, outcomes to reports.

May import `webhook.admission`, `webhook.standings` and what is below them. Never here: files, streams,
clocks, network; the caller reads and writes.
"""
