"""A training loop for the compose file: softmax regression on points around four centres, with numpy alone."""

import time

import numpy as np
from numpy.typing import NDArray

import cesar

CLASSES, SIZE, RATE = 4, 16, 0.2
CENTRES = np.random.default_rng(0).normal(size=(CLASSES, SIZE)).astype(np.float32)


def points(seed: int, count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Points and the centres that they belong to."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, CLASSES, count)
    return (CENTRES[labels] + draw.normal(scale=2, size=(count, SIZE))).astype(np.float32), labels


def probabilities(model: NDArray[np.float32], images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of each centre, for each point."""
    scores = images @ model.reshape(SIZE, CLASSES)
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def train(peer: cesar.Peer, rounds: int = 10_000, pause: float = 0.5) -> None:
    """Each peer has points of its own; all are tested on the same ones."""
    model = np.zeros(SIZE * CLASSES, np.float32)
    images, labels = points(1 + peer.id, 60)
    tests, answers = points(999, 1000)
    for _ in range(rounds):
        error = probabilities(model, images) - np.eye(CLASSES, dtype=np.float32)[labels]
        model -= RATE * (images.T @ error).ravel() / len(images)
        peer.average_vector(model)
        guessed = probabilities(model, tests)
        loss = -np.log(guessed[np.arange(len(answers)), answers] + 1e-9).mean()
        peer.show(accuracy=float((guessed.argmax(1) == answers).mean()), test_loss=float(loss))
        time.sleep(pause)
