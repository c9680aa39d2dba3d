"""The same network in PyTorch; its input tensor is the slot's own memory."""

import torch
from torch import nn

from . import DemoError
from .augment import SIDE
from .layers import Adam, Array
from .network import CHANNELS, FLATTEST, HIDDEN, RATE, SHRINK


def tensor_of(array: Array) -> torch.Tensor:
    """Makes a tensor over an array's memory. Raises `DemoError` if PyTorch has copied it."""
    tensor = torch.from_dlpack(array)
    if tensor.data_ptr() != array.ctypes.data:
        raise DemoError(
            f"PyTorch copied the images to {tensor.data_ptr():#x}, "
            f"they lie at {array.ctypes.data:#x}"
        )
    return tensor


class Network:
    """Two convolutions and two dense layers; learns by `step`."""

    def __init__(self, seed: int = 0):
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        first, second = CHANNELS
        self.layers = nn.Sequential(
            nn.Conv2d(3, first, 5, 2),
            nn.ReLU(),
            nn.Conv2d(first, second, 3, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.LazyLinear(HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, 1),
        )
        self.layers(torch.zeros(1, 3, SIDE // SHRINK, SIDE // SHRINK))  # sizes the lazy layer
        self.adam = torch.optim.Adam(self.layers.parameters(), RATE)
        self.rate = torch.optim.lr_scheduler.LinearLR(
            self.adam, start_factor=1 / Adam.WARM_UP, total_iters=Adam.WARM_UP
        )

    def step(self, images: Array, labels: Array) -> Array:
        """Learns from one batch; gives the predictions made before."""
        pictures = nn.functional.avg_pool2d(tensor_of(images), SHRINK)
        pictures -= pictures.mean((1, 2, 3), keepdim=True)
        pictures /= pictures.std((1, 2, 3), keepdim=True) + FLATTEST
        predictions = self.layers(pictures)[:, 0]
        loss = nn.functional.mse_loss(predictions, torch.tensor(labels))
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        self.rate.step()
        result: Array = predictions.detach().numpy()
        return result
