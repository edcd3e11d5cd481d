"""``python -m tacit``."""

from tacit.cli.app import main

main()
