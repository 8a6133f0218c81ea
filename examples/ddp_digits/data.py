"""Read the handwritten digits that lie beside this file: 1,797 grey images of 8x8 pixels, ten classes."""

from __future__ import annotations

import gzip
import os
from typing import NamedTuple

import torch
from torch import Tensor

TRAIN_SIZE = 1437  # the first four fifths in the file's own order; the rest is held out


class Digits(NamedTuple):
    """Images of shape (N, 1, 8, 8) with values 0 to 1; labels of shape (N,) with values 0 to 9."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load(path: str = os.path.join(os.path.dirname(os.path.abspath(__file__)), "digits.csv.gz")) -> Digits:
    """Each line of the file: 64 pixels from 0 to 16, then the digit."""
    with gzip.open(path, "rt") as file:
        rows = torch.tensor([[int(value) for value in line.split(",")] for line in file])
    images = rows[:, :64].float().div(16).reshape(-1, 1, 8, 8)
    labels = rows[:, 64]
    return Digits(images[:TRAIN_SIZE], labels[:TRAIN_SIZE], images[TRAIN_SIZE:], labels[TRAIN_SIZE:])
