"""Dialects whose pods the schedulers of their own systems place: Bursar governs, meters and charges them."""
