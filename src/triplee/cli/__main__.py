"""`python -m triplee.cli` is `triplee`."""

from triplee.cli.main import main

main()
