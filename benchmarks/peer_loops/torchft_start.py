"""Become a replica of torchft: ``tacit launch`` starts this file with tacit's Python, and the process goes on with that
of torchft's environment, under the same process number. Imports nothing, so that a restart takes torchft's time alone.
"""

import os
import sys

python, root, job = sys.argv[1:]
os.chdir(root)
os.execv(python, [python, "-m", "benchmarks.peer_loops.torchft_replica", job])
