"""``ram``: whose is every page of a RAM image, and what was running."""
