"""One torch thread: runs are small, and the digest of a run is promised for equal thread counts. Drawn examples have no deadline."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("tacit", deadline=None)
settings.load_profile("tacit")
