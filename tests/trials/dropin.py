"""What programs of trials with the drop-in begin with; without torch they are skipped."""

import pytest

pytest.importorskip("torch", reason="torch isn't installed: `make test-torch` sets it up")

HEAD = """
import gc
import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path

warnings.simplefilter("ignore")

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from ropeway.torch import DataLoader

METHOD = sys.argv[1]
"""
