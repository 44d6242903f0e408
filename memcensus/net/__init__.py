"""``net``: what a network's training step holds in memory, and who holds it."""
