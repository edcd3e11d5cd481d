"""One torch thread: runs are small, and the digest of a run is promised for equal thread counts."""

import torch

torch.set_num_threads(1)
