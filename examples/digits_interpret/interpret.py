"""Which pixels made the digits model answer as it did: integrated gradients, by Captum.

Needs torch and captum. The model and the images are those of ``examples/ddp_digits``; its ``train.py --checkpoint``
writes the checkpoint. Attributions are written as JSON; a picture of each image and of what counted goes to the log.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "ddp_digits"))

import torch
from captum.attr import IntegratedGradients
from data import load
from torch import Tensor, nn
from train import cnn

from torchx.tracker import app_run_from_env

SHADES = " .:-=+*#%@"


def main() -> None:
    args = parse_args()
    model = cnn()
    model.load_state_dict(torch.load(args.checkpoint, weights_only=True)["model"])
    model.eval()
    digits = load()
    images, labels = digits.test_images[: args.images], digits.test_labels[: args.images]
    answers = model(images).argmax(1)
    attributions, error = attribute(model, images, answers, args.steps)
    for i, image in enumerate(images):
        print(f"image {i}: it is {labels[i]}, the model says {answers[i]}")
        print("\n".join(f"  {a}    {b}" for a, b in zip(rows(image), rows(attributions[i].clamp(min=0)), strict=True)))
    print(f"attributions differ from the scores that they explain by {error:.4f} at most")
    save(args.out, labels, answers, attributions)
    run = app_run_from_env()
    run.add_artifact("attributions", os.path.abspath(args.out), {"images": len(images), "steps": args.steps})
    run.add_metadata(completeness_error=error, right=int((answers == labels).sum()))


def attribute(model: nn.Module, images: Tensor, answers: Tensor, steps: int) -> tuple[Tensor, float]:
    """The share of each pixel in the score of the answer, against a blank image: shape (N, 1, 8, 8).

    They add up to the difference of the two scores; the second value is by how much they fail to.
    """
    blank = torch.zeros_like(images)
    found, delta = IntegratedGradients(model).attribute(
        images, blank, target=answers, n_steps=steps, return_convergence_delta=True
    )
    return found.float().detach(), float(delta.abs().max())


def rows(picture: Tensor) -> list[str]:
    """Eight lines of eight characters, the darker the higher the value."""
    scaled = picture.squeeze(0) / picture.max().clamp(min=1e-9) * (len(SHADES) - 1)
    return ["".join(SHADES[int(value)] for value in row) for row in scaled]


def save(path: str, labels: Tensor, answers: Tensor, attributions: Tensor) -> None:
    found = [
        {"label": int(label), "answer": int(answer), "attribution": values.squeeze(0).tolist()}
        for label, answer, values in zip(labels, answers, attributions, strict=True)
    ]
    with open(path, "w") as file:
        json.dump(found, file)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", required=True, help="what train.py has written")
    parser.add_argument("--out", default="attributions.json", help="file for the attributions")
    parser.add_argument("--images", type=int, default=3, help="how many of the held-out images")
    parser.add_argument("--steps", type=int, default=64, help="of the integral: more are more exact")
    return parser.parse_args()


if __name__ == "__main__":
    main()
