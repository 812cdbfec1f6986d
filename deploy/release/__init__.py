"""What is published of a release: the wheel and the source archive, which are the same bytes wherever and
whenever they are built from a commit, and their software bill of materials. Beside it the dependencies'
licences, and which are allowed.
"""
