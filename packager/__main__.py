"""``python -m packager``."""

from packager.cli.main import main

main()
