"""A PRU in a scikit-learn pipeline, with skorch: nothing differs from an nn.LSTM.

    pip install torch-pru skorch
    python examples/skorch_forecast.py

The task: the next value of a noisy sine, from the 24 values before it.
"""

from __future__ import annotations

import numpy
import torch
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetRegressor
from torch import Tensor, nn

from torch_pru import PRU


class Forecaster(nn.Module):
    def __init__(self, units: int = 64) -> None:
        super().__init__()
        self.rnn = PRU(1, units, batch_first=True)  # was: nn.LSTM(1, units, batch_first=True)
        self.head = nn.Linear(units, 1)

    def forward(self, x: Tensor) -> Tensor:
        _, (h, _) = self.rnn(x)
        return self.head(h[-1])


def windows(length: int = 600, steps: int = 24) -> tuple[numpy.ndarray, numpy.ndarray]:
    time = numpy.arange(length + steps)
    noise = numpy.random.default_rng(0).normal(0, 0.05, time.size)
    series = (numpy.sin(time / 5) + noise).astype(numpy.float32)
    x = numpy.stack([series[start : start + steps] for start in range(length)])
    return x[:, :, None], series[steps:, None]


def main(epochs: int = 15) -> GridSearchCV:
    """Choose the number of units by cross-validation."""
    torch.manual_seed(0)
    x, y = windows()
    net = NeuralNetRegressor(
        Forecaster, max_epochs=epochs, lr=0.01, optimizer=torch.optim.Adam, train_split=None, verbose=0
    )
    return GridSearchCV(net, {"module__units": [32, 64]}, cv=2, scoring="r2").fit(x, y)


if __name__ == "__main__":
    found = main()
    print(f"best: {found.best_params_}, R² {found.best_score_:.2f}")
