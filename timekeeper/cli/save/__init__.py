"""``kubectl bursar save``: what a cluster needs to come back to Bursar, in a folder."""
