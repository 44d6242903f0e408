"""``python -m memcensus``, and the command ``memcensus``."""

import os


def main() -> None:
    """Run the command line; a Ctrl-C that comes while it is still loading needs no traceback."""
    try:
        from memcensus import cli  # noqa: PLC0415  (inside, so that the interrupt is caught)
    except KeyboardInterrupt:
        os._exit(130)
    cli.main()


if __name__ == "__main__":
    main()
