"""Pictures as values: points in the picture's own coordinates, which templates write as SVG.

Pure: no call, no clock, no HTML. May import `timekeeper.core`.
"""
