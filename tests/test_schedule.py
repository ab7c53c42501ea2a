import json
import math
import random
from dataclasses import FrozenInstanceError, dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, MultiStepLR

from snapens import CyclicCosine, Schedule, StepDecay
from snapens.errors import ArgumentError
from snapens.schedule import description


def equation_2(t: int, total: int, cycles: int, peak: float) -> float:
    """The paper's formula as it is printed, t counted from 1."""
    length = math.ceil(total / cycles)
    return peak / 2 * (math.cos(math.pi * ((t - 1) % length) / length) + 1)


def test_rates_equal_equation_2_for_a_thousand_random_settings_in_which_the_cycles_divide_the_steps():
    rng = random.Random(0)
    for _ in range(1000):
        cycles = rng.randint(1, 12)
        total = cycles * rng.randint(1, 250)
        peak = 10 ** rng.uniform(-5, 1)
        schedule = CyclicCosine(total, cycles)
        ends = schedule.snapshot_steps
        for step in {0, *schedule.restart_steps, *(end - 1 for end in ends), rng.randrange(total)}:
            assert abs(peak * schedule(step) - equation_2(step + 1, total, cycles, peak)) <= 1e-12 * peak


def test_any_total_of_at_least_as_many_steps_as_cycles_gives_cycles_that_differ_by_one_step_at_most():
    for total in range(1, 130):
        for cycles in range(1, total + 1):
            ends = CyclicCosine(total, cycles).snapshot_steps
            lengths = [end - begin for begin, end in pairwise((0, *ends))]
            assert len(ends) == cycles
            assert ends[-1] == total
            assert max(lengths) - min(lengths) <= 1


def test_every_cycle_is_a_cosine_of_its_own_length():
    schedule = CyclicCosine(11, 3, warmup_steps=1)  # 3, 3 and 4 steps
    assert schedule.snapshot_steps == (4, 7, 11)
    cosine = lambda length: [(math.cos(math.pi * i / length) + 1) / 2 for i in range(length)]  # noqa: E731
    assert [schedule(step) for step in range(1, 11)] == [*cosine(3), *cosine(3), *cosine(4)]


@pytest.mark.parametrize(
    ("total", "cycles", "lr"), [(12, 3, 0.1), (600, 6, 0.2), (100, 10, 0.03), (1000, 1, 1.7), (7, 7, 0.1)]
)
def test_rates_are_bit_equal_to_torchs_warm_restarts(total, cycles, lr):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    schedule = CyclicCosine(total, cycles)
    reference = CosineAnnealingWarmRestarts(optimizer, T_0=math.ceil(total / cycles))
    for step in range(total):
        assert lr * schedule(step) == optimizer.param_groups[0]["lr"]
        optimizer.step()
        reference.step()


def test_step_decay_equals_torchs_multi_step():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    reference = MultiStepLR(optimizer, milestones=[100, 150])
    schedule = StepDecay(200, snapshots=5)
    for step in range(200):
        assert 0.1 * schedule(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        optimizer.step()
        reference.step()
    assert schedule.snapshot_steps == (40, 80, 120, 160, 200)


def test_milestones_come_at_the_nearest_step_whatever_their_product_rounds_to():
    assert [StepDecay(100, milestones=(0.55,))(step) for step in (54, 55)] == [1.0, 0.1]


def test_snapshots_end_the_cycles_and_never_come_a_step_late():
    schedule = CyclicCosine(12, 3)
    assert schedule.snapshot_steps == (4, 8, 12)
    assert schedule.restart_steps == (4, 8)
    for end in schedule.snapshot_steps:
        assert schedule(end - 1) == min(schedule(step) for step in range(end))
    assert schedule(4) == schedule(8) == 1.0


def test_the_papers_densenet_has_cycles_of_39062_and_39063_steps():
    assert CyclicCosine(234_375, 6).snapshot_steps == (39_062, 78_125, 117_187, 156_250, 195_312, 234_375)


def test_step_decay_and_cyclic_cosine_keep_the_same_steps():
    assert StepDecay(234_375, 6).snapshot_steps == CyclicCosine(234_375, 6).snapshot_steps


def test_warm_up_counts_inside_the_total_and_shifts_captures_with_cycles():
    schedule = CyclicCosine(13, 3, warmup_steps=4)
    assert [schedule(step) for step in range(5)] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert schedule.snapshot_steps == (7, 10, 13)
    plain = CyclicCosine(9, 3)
    assert [schedule(step + 4) for step in range(9)] == [plain(step) for step in range(9)]
    assert [StepDecay(10, warmup_steps=1)(step) for step in range(3)] == [0.5, 1.0, 1.0]


def test_the_first_cycle_is_as_many_times_as_long_as_the_others():
    for total, cycles, first, warmup in [
        (120, 3, 2, 0),
        (125, 3, 2, 5),
        (100, 5, 6.0, 0),
        (70, 4, 1.5, 0),
        (36, 6, 2.2, 0),
    ]:
        schedule = CyclicCosine(total, cycles, first=first, warmup_steps=warmup)
        ends = (warmup, *schedule.snapshot_steps)
        lengths = [end - begin for begin, end in pairwise(ends)]
        unit = (total - warmup) / (first + cycles - 1)
        assert ends[-1] == total
        assert abs(lengths[0] - first * unit) < 1
        assert all(abs(length - unit) < 1 for length in lengths[1:])
    assert CyclicCosine(125, 3, first=2, warmup_steps=5).snapshot_steps == (65, 95, 125)
    assert CyclicCosine(36, 6, first=2.2).snapshot_steps == (11, 16, 21, 26, 31, 36)


def test_a_longer_first_cycle_is_a_cosine_of_its_own_length():
    schedule = CyclicCosine(10, 3, first=3, min_factor=0.1)
    assert schedule.snapshot_steps == (6, 8, 10)
    cosine = lambda length: [0.1 + 0.9 * (math.cos(math.pi * i / length) + 1) / 2 for i in range(length)]  # noqa: E731
    assert [schedule(step) for step in range(10)] == [*cosine(6), *cosine(2), *cosine(2)]
    assert schedule.restart_steps == (6, 8)


def test_later_cycles_can_start_at_a_lower_rate():
    schedule = CyclicCosine(10, 3, first=3, later_peak=0.4, min_factor=0.1, warmup_steps=0)
    cosine = lambda peak, length: [  # noqa: E731
        0.1 + (peak - 0.1) * (math.cos(math.pi * i / length) + 1) / 2 for i in range(length)
    ]
    assert [schedule(step) for step in range(10)] == [*cosine(1, 6), *cosine(0.4, 2), *cosine(0.4, 2)]
    assert schedule(10) == 0.1
    assert "first=3, later_peak=0.4, snapshot_steps" in repr(schedule)


def test_a_first_cycle_like_the_others_changes_neither_a_value_nor_the_text():
    rng = random.Random(1)
    for _ in range(200):
        cycles, warmup = rng.randint(1, 9), rng.randint(0, 5)
        total = warmup + cycles + rng.randint(0, 300)
        schedule, steps = CyclicCosine(total, cycles, warmup_steps=warmup, first=1), total - warmup
        assert schedule == CyclicCosine(total, cycles, warmup_steps=warmup)
        assert schedule.snapshot_steps == tuple(warmup + (k + 1) * steps // cycles for k in range(cycles))
        text = f"warmup_steps={warmup}, min_factor=0.0, snapshot_steps={schedule.snapshot_steps})"
        assert repr(schedule) == f"CyclicCosine(total_steps={total}, cycles={cycles}, {text}"
    assert "min_factor=0.0, first=4, snapshot_steps=(8, 10, 12)" in repr(CyclicCosine(12, 3, first=4))


def test_min_factor_is_the_floor():
    schedule = CyclicCosine(100, 2, min_factor=0.1)
    assert schedule(0) == 1.0
    assert schedule(25) == pytest.approx(0.55)
    assert schedule(100) == schedule(10_000) == 0.1


def test_a_gamma_of_one_keeps_the_rate():
    assert {StepDecay(8, gamma=1.0)(step) for step in range(8)} == {1.0}


def test_the_rate_stays_at_its_minimum_after_the_end():
    assert CyclicCosine(12, 3)(12) == 0.0
    assert StepDecay(12)(12) == pytest.approx(0.01)


def test_schedules_are_values():
    schedule = CyclicCosine(12, 3)
    assert schedule == CyclicCosine(12, 3)
    assert hash(schedule) == hash(CyclicCosine(12, 3))
    assert schedule != CyclicCosine(12, 4)
    assert replace(schedule, cycles=2).snapshot_steps == (6, 12)
    assert "snapshot_steps=(4, 8, 12)" in repr(schedule)
    with pytest.raises(FrozenInstanceError):
        schedule.cycles = 4


def test_integers_of_numpy_become_ints():
    schedule = CyclicCosine(np.int64(12), np.int32(3), warmup_steps=np.uint8(0))
    assert schedule == CyclicCosine(12, 3)
    assert repr(schedule) == repr(CyclicCosine(12, 3))
    assert json.dumps(description(schedule)) == json.dumps(description(CyclicCosine(12, 3)))
    assert StepDecay(np.int64(12), np.int64(3)).snapshot_steps == (4, 8, 12)


def test_table_shows_restarts_minima_and_rates():
    *_, last = CyclicCosine(100, 2).table(lr=0.2).splitlines()
    assert last.split() == ["2", "50", "0.2", "99", f"{0.1 * (math.cos(math.pi * 49 / 50) + 1):.4g}"]
    assert CyclicCosine(100, 2).table().splitlines()[-1].split()[2] == "1"


def test_a_schedule_of_your_own_has_a_table_too():
    @dataclass(frozen=True)
    class Constant(Schedule):
        total_steps: int
        restart_steps = ()

        @property
        def snapshot_steps(self):
            return (self.total_steps,)

        def __call__(self, step):
            return 1.0

    assert len(Constant(5).table().splitlines()) == 2


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: CyclicCosine(12, 0), "cycles must be a whole number of at least 1, got 0"),
        (lambda: CyclicCosine(12, 1.5), "cycles must be a whole number of at least 1, got 1.5"),
        (lambda: CyclicCosine(0, 1), "total_steps must be a whole number of at least 1, got 0"),
        (
            lambda: CyclicCosine(12.0, 3),
            "total_steps must be a whole number of at least 1, got 12.0: use int(), or // for a division",
        ),
        (lambda: CyclicCosine(12, True), "cycles must be a whole number of at least 1, got True"),
        (lambda: StepDecay(torch.tensor(1.5)), "total_steps must be a whole number of at least 1, got tensor(1.5"),
        (lambda: CyclicCosine(3, 4), "cycles=4 after warmup_steps=0, got 3: use total_steps=4 or cycles=3"),
        (lambda: CyclicCosine(4, 2, warmup_steps=4), "got 4: use total_steps=6"),
        (lambda: CyclicCosine(5, 2, warmup_steps=4), "got 5: use total_steps=6 or cycles=1"),
        (lambda: CyclicCosine(1000, 10**8), "use total_steps=100000000 or cycles=1000"),
        (lambda: CyclicCosine(4, 2, warmup_steps=-1), "warmup_steps must be a whole number of at least 0, got -1"),
        (lambda: CyclicCosine(4, 2, min_factor=1.0), "min_factor must be at least 0 and less than 1, got 1.0"),
        (lambda: CyclicCosine(4, 2, min_factor=math.nan), "min_factor"),
        (lambda: CyclicCosine(12, 3, first=0.5), "first must be a finite number of at least 1, got 0.5"),
        (lambda: CyclicCosine(12, 3, first=math.inf), "first must be a finite number of at least 1, got inf"),
        (lambda: CyclicCosine(12, 3, first=math.nan), "first must be a finite number of at least 1, got nan"),
        (lambda: CyclicCosine(9, 3, first=7.5, warmup_steps=1), "got 9: use total_steps=11 or a smaller first"),
        (
            lambda: CyclicCosine(12, 3, later_peak=0.1, min_factor=0.1),
            r"later_peak must be more than min_factor=0.1 and at most 1, got 0.1",
        ),
        (lambda: CyclicCosine(12, 3, later_peak=1.1), "later_peak must be more than min_factor=0.0 and at most 1, got"),
        (lambda: CyclicCosine(4, 2)(-1), "step must be at least 0, got -1"),
        (lambda: StepDecay(4)(-1), "step must be at least 0, got -1"),
        (lambda: StepDecay(3, 4), "use total_steps=4 or snapshots=3"),
        (lambda: StepDecay(4, gamma=0.0), "gamma must be more than 0 and at most 1, got 0.0"),
        (lambda: StepDecay(4, gamma=1.1), "gamma must be more than 0 and at most 1, got 1.1"),
        (lambda: StepDecay(4, milestones=(0.5, 1.0)), "milestones must be shares of T"),
        (lambda: StepDecay(4, milestones=(0.0, 0.5)), "milestones must be shares of T"),
    ],
)
def test_bad_arguments_are_refused_with_rule_value_and_remedy(build, words):
    with pytest.raises(ArgumentError) as caught:
        build()
    assert words in str(caught.value)
