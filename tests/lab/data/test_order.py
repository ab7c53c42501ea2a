import numpy as np
import pytest

from snapens.lab.data.order import Order


def by_definition(seed, images, columns, epochs):
    """The stream of (image, draws) straight from Philox: a counter for the order, another for the draws."""
    indices, draws = [], []
    for epoch in range(epochs):
        keys = np.random.Philox(key=[seed, epoch]).random_raw(images).tolist()
        indices += sorted(range(images), key=keys.__getitem__)
        words = np.random.Philox(key=[seed, epoch], counter=[0, 0, 0, 1]).random_raw(images * columns).tolist()
        draws += [(word >> 40) / 2**24 for word in words]
    return np.array(indices), np.array(draws).reshape(images * epochs, columns)


@pytest.mark.parametrize(("images", "batch"), [(7, 3), (12, 4), (5, 11), (1, 1), (100, 64)])
@pytest.mark.parametrize("seed", [0, 3, 2**63 - 1])
def test_rows_are_the_raw_output_of_philox_cut_into_full_batches(images, batch, seed):
    steps = -(-4 * images // batch)
    indices, draws = Order(seed, images, batch, columns=3).rows(0, steps)
    every, drawn = by_definition(seed, images, 3, epochs=-(-steps * batch // images))
    assert indices.shape == (steps, batch)
    assert draws.shape == (steps, batch, 3)
    assert draws.dtype == np.float32
    assert np.array_equal(indices.ravel(), every[: steps * batch])
    assert np.array_equal(draws.reshape(-1, 3), drawn[: steps * batch])


def test_every_epoch_is_a_permutation_and_batches_straddle_epochs():
    indices, _ = Order(seed=1, images=10, batch=4, columns=0).rows(0, 15)
    for epoch in indices.reshape(6, 10):
        assert sorted(epoch) == list(range(10))
    assert len({tuple(epoch) for epoch in indices.reshape(6, 10)}) == 6
    assert sorted([*indices[0], *indices[1], *indices[2][:2]]) == list(range(10))  # the third batch begins epoch two


def test_any_cut_of_the_stream_gives_the_same_rows():
    def whole():
        return Order(seed=5, images=13, batch=4, columns=2)

    indices, draws = whole().rows(0, 40)
    asked = whole()
    for first, steps in [(0, 1), (3, 1), (39, 1), (2, 9), (12, 28), (0, 40), (20, 3), (4, 1)]:  # back and forth
        some, drawn = asked.rows(first, steps)
        assert np.array_equal(some, indices[first : first + steps])
        assert np.array_equal(drawn, draws[first : first + steps])


def test_draws_are_uniform_and_below_one():
    _, draws = Order(seed=2, images=50_000, batch=50_000, columns=2).rows(3, 1)
    assert draws.min() >= 0
    assert draws.max() < 1
    for column in draws[0].T:
        counts = np.bincount((column * 10).astype(int), minlength=10)
        assert len(counts) == 10
        assert np.abs(counts - 5000).max() < 4 * (50_000 * 0.1 * 0.9) ** 0.5
    assert abs(np.corrcoef(draws[0].T)[0, 1]) < 4 / 50_000**0.5


def test_other_seeds_and_epochs_have_other_orders_and_draws():
    rows = [Order(seed, 50, 50, columns=1).rows(epoch, 1) for seed, epoch in [(0, 0), (1, 0), (0, 1), (1, 1)]]
    assert len({tuple(indices.ravel()) for indices, _ in rows}) == 4
    assert len({tuple(draws.ravel()) for _, draws in rows}) == 4


def test_the_draws_have_no_part_in_the_order():
    without, with_draws = (Order(4, 30, 8, columns).rows(0, 10)[0] for columns in (0, 8))
    assert np.array_equal(without, with_draws)
