"""``python -m webhook audit``: what runs already, judged by today's rules."""
