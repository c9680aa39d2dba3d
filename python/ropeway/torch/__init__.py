"""`torch.utils.data.DataLoader` whose batches come by the ropeway: change one import.

from ropeway.torch import DataLoader
"""

from ropeway.torch.dataloader import DataLoader, WorkerDied

__all__ = ["DataLoader", "WorkerDied"]
