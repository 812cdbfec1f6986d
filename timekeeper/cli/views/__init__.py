"""Answers of the REST API as sheets: columns and rows of text.

Pure: no call, no clock, no terminal. May import `timekeeper.cli.output`.
"""
