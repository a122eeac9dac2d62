"""``python -m pulsecast.cli``: the same as the ``pulsecast`` script."""

from pulsecast.cli.app import main

if __name__ == "__main__":
    main()
