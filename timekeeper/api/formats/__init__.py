"""Report lines as JSON, CSV and FOCUS rows.

Pure text: may import ``accounts`` and ``core``. Never here: requests and SQL.
"""
