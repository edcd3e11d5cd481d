"""``python -m tacit.cli``."""

from tacit.cli.app import main

main()
