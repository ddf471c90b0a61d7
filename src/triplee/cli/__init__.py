"""The command line: verbs only – parse, call, print. Bad input ends with exit code 2 and one line.

Heavy imports wait inside the verbs, so that `triplee --help` answers at once.
"""

from triplee.cli.main import app, main

__all__ = ["app", "main"]
