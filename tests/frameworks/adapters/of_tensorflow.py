"""TensorFlow: knows the old capsule only, and has no arrays that may only be read."""

import warnings

import numpy as np

from adapters import framework
from capsules import Seen

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tensorflow as tf


class Framework(framework.Framework):
    name = "tensorflow"
    dtypes = (*framework.Framework.dtypes, "bfloat16")
    layouts = ()
    aligned = True
    writes = False

    def address(self, there):
        return Seen(tf.experimental.dlpack.to_dlpack(there)).data

    def values(self, there):
        return np.array(there.numpy())

    def part(self, there):
        return tf.identity(there)

    def last(self, there):
        return None

    def make(self, values):
        return tf.constant(values)
