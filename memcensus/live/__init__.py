"""``live``: what this machine's memory is doing now."""
