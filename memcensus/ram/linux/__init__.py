"""Linux in a RAM image, without symbol files."""
