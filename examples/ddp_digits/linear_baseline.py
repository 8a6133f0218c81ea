"""Print what a linear model reaches on the same split: logistic regression, fitted until it converges.

Five strengths of L2 regularisation, and the best of them *on the held-out images themselves*: more than a linear
model could claim in earnest, so a fair bar for ``train.py`` to clear. One process, torch only.
"""

from __future__ import annotations

import torch
from data import Digits, load
from torch import Tensor, nn


def main() -> None:
    digits = load()
    reached = {strength: fit(digits, strength) for strength in (0.01, 0.1, 1.0, 10.0, 100.0)}
    for strength, value in reached.items():
        print(f"C={strength:<6g} test accuracy {value:.4f}")
    print(f"best linear test accuracy: {max(reached.values()):.4f}")


def fit(digits: Digits, strength: float) -> float:
    """Accuracy after minimising ``strength * sum of cross entropies + |weights|^2 / 2``, scikit-learn's objective."""
    images, labels = digits.train_images.flatten(1).double(), digits.train_labels
    model = nn.Linear(64, 10).double()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=2000, tolerance_change=1e-10, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels, reduction="sum") * strength
        loss = (loss + model.weight.square().sum() / 2) / len(labels)
        loss.backward()
        return loss

    optimizer.step(objective)
    scores = model(digits.test_images.flatten(1).double())
    return (scores.argmax(1) == digits.test_labels).double().mean().item()


if __name__ == "__main__":
    main()
