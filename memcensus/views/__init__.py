"""Ways to show a report; each takes reports and nothing else."""
