"""Use ε-SupInfoNCE and FairKL in a plain PyTorch loop. Takes seconds on a CPU, needs no download.

    python examples/own_loop.py

Each sample has a weak core feature (the label plus noise) and a strong shortcut (equal to the label
for 98 % of the training samples, random at test time). A linear probe on the learned features shows
which of the two the encoder kept.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairmargin import losses

CLASSES, DIM = 4, 8


def sample(n: int, agreement: float, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw (inputs, labels, bias labels)."""
    y = torch.randint(CLASSES, (n,), generator=generator)
    follows = torch.rand(n, generator=generator) < agreement
    b = torch.where(follows, y, torch.randint(CLASSES, (n,), generator=generator))
    core = torch.zeros(n, DIM)
    core[:, :CLASSES] = F.one_hot(y, CLASSES)
    shortcut = torch.zeros(n, DIM)
    shortcut[:, :CLASSES] = F.one_hot(b, CLASSES)
    noise = torch.randn(n, 2 * DIM, generator=generator)
    weak = core + 0.35 * noise[:, :DIM]
    strong = 3 * shortcut + 0.1 * noise[:, DIM:]
    return torch.cat([weak, strong], dim=1), y, b


def train(x: Tensor, y: Tensor, b: Tensor, *, fairkl: bool, steps: int = 600) -> nn.Module:
    """Train an encoder with ε-SupInfoNCE, and FairKL if asked for."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(2 * DIM, 64), nn.ReLU(), nn.Linear(64, 16))
    optimizer = torch.optim.Adam(encoder.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = torch.randint(len(x), (256,))
        z = encoder(x[batch])
        loss = losses.eps_supinfonce(z, y[batch], epsilon=0.25)
        if fairkl:
            term = losses.fairkl(z, y[batch], b[batch], divergence="moments", negatives=True)
            loss = 0.3 * loss + term
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return encoder


def probe(encoder: nn.Module, x: Tensor, y: Tensor, x_test: Tensor, y_test: Tensor) -> float:
    """Return the test accuracy of a linear classifier on the frozen, normalized features."""
    with torch.no_grad():
        z = F.normalize(encoder(x), dim=1)
        z_test = F.normalize(encoder(x_test), dim=1)
    classifier = nn.Linear(16, CLASSES)
    optimizer = torch.optim.LBFGS(classifier.parameters(), max_iter=200)

    def closure() -> Tensor:
        optimizer.zero_grad()
        penalty = 1e-4 * classifier.weight.square().sum()
        loss = F.cross_entropy(classifier(z), y) + penalty
        loss.backward()
        return loss

    optimizer.step(closure)
    return (classifier(z_test).argmax(1) == y_test).float().mean().item()


def main() -> None:
    """Compare the contrastive loss alone with the loss and FairKL."""
    generator = torch.Generator().manual_seed(0)
    x, y, b = sample(8000, 0.975, generator)
    x_test, y_test, _ = sample(4000, 0.0, generator)
    for name, fairkl in (("ε-SupInfoNCE", False), ("ε-SupInfoNCE + FairKL", True)):
        encoder = train(x, y, b, fairkl=fairkl)
        accuracy = probe(encoder, x, y, x_test, y_test)
        print(f"{name:22}  accuracy without the shortcut: {accuracy:.1%}")


if __name__ == "__main__":
    main()
