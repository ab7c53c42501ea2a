"""The Triton kernels that compute a dense block on a GPU.

A block has C0 input channels and L layers, each of which adds k channels, so it ends with C = C0 + L k channels. All
its feature maps are in one matrix, the *buffer*. The buffer has one row for each of the P = images x side x side
pixels and one column for each channel. A layer reads the first columns and writes the next k columns, so nothing is
ever concatenated.

The batch statistics of a channel depend only on that channel. They are computed once, when the channel is written
(from the rounded values, after dropout). All later BatchNorms of the block use them, each with its own scale and shift.

Forward
    take_in             copies the input of the block into the first columns, and computes statistics per tile of
                        pixels.
    prepare             combines the statistics of the tiles, in a fixed order, into the mean and 1 / deviation of each
                        new channel; writes the norm of a layer as a factor and an offset, and the weights of the layer
                        in the order in which `taps` reads them.
    taps                normalises, applies the ReLU, and multiplies by the weights of all nine taps of the convolution
                        at once: (P, c) @ (c, 9 k). So each activation is read and normalised once instead of nine
                        times (twice if there are few pixels and two programs share the taps).
    gather              adds up the nine products that belong to a pixel, which gives the k new columns of the layer;
                        applies dropout; computes statistics per tile.
    close               applies the norm and the ReLU at the end of the block, and takes the mean of each factor x
                        factor pixels.

Backward
Let z be the normalised values of a channel, and g the gradient of a norm's output behind the ReLU, times the scale of
the norm. The gradient through the norm is (1 / deviation) (g - mean(g) - z mean(g z)). This is linear in g, and all
norms of a channel share the same z. So g is summed over the norms, and the sum is corrected once, when the gradient of
the channel is needed. The sums form a matrix like the buffer, named *arriving*. The two means follow from the
gradients of the norms' own parameters, summed over the norms:
P mean(g) = sum of scale x (gradient of shift), P mean(g z) = sum of scale x (gradient of scale).
    close_backward      starts the sums with the gradient of the closing norm. This gradient may be equal at all pixels
                        of an image, and then its rounding errors are equal too and do not average out. So the two
                        means start from the rounded gradient.
    outgoing            computes the corrected gradient of a layer's k columns, applies dropout to it, and writes it
                        nine times, each time shifted as one tap of the convolution sees it: *views*, (P, 9 k).
    layer_backward      handles one tile of channels and one range of pixels. The weights times the views give the
                        gradient of the activations, which is added to the sums. The activations, normalised again,
                        times the views give the gradient of the weights. Channels are the rows of both products. So a
                        thread holds few channels, and can multiply its activations without moving them.
    combine             adds up the results of the ranges of pixels, in a fixed order.
    incoming            computes the corrected gradient of the block's input.

The copy engine of the GPU moves the matrices of a product (`load`, `store` and `atomic_add` of tensor descriptors).
Beyond the columns that a matrix has at that layer it reads zeros and writes nothing. No element is added to twice in
one launch, so the same input gives the same bits. Activations are rounded to the dtype of the buffer before they are
multiplied, as in the plain modules; sums and statistics are float32.

In each signature the pointers come first, then the numbers, then the compile-time constants. `UNIT` divides every
number of channels. It tells the compiler how wide a load may be at every layer, so one compiled program serves all.
"""

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor


def matrix(tensor: Tensor, columns: int, *block: int) -> TensorDescriptor:
    """Describe the first columns of a matrix to the copy engine, which moves blocks of this shape."""
    return TensorDescriptor(tensor, [len(tensor), columns], [tensor.stride(0), 1], [*block])


@triton.jit
def mix32(x):
    """`dropout.mix32` for uint32."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def dropped(
    values, key, layer, p, j, AREA: tl.constexpr, GROWTH: tl.constexpr, THRESHOLD: tl.constexpr, SCALE: tl.constexpr
):
    """Apply `dropout.KeyedDropout` to the values of pixels p and channels j; an image has AREA pixels."""
    position = (p // AREA * GROWTH * AREA + p % AREA)[:, None] + j[None, :] * AREA  # in (N, C, H, W) order
    now = tl.load(key)
    stream = mix32(mix32(tl.load(layer).to(tl.uint32)) ^ now.to(tl.uint32))
    stream = mix32(stream ^ (now >> 32).to(tl.uint32))
    return tl.where(mix32(position.to(tl.uint32) ^ stream) >= THRESHOLD, values * SCALE, 0.0)


@triton.jit
def tile_statistics(values, inside, there, column, pixels, means, squares, PIXELS: tl.constexpr):
    """Store the mean and the sum of squared deviations of each column of this tile of pixels: (columns, tiles)."""
    values = values.to(tl.float32)
    count = tl.minimum(pixels - tl.program_id(0) * PIXELS, PIXELS).to(tl.float32)
    at = column * tl.num_programs(0) + tl.program_id(0)
    mean = tl.sum(tl.where(inside, values, 0.0), 0) / count
    deviation = tl.where(inside, values - mean[None, :], 0.0)
    tl.store(means + at, mean, mask=there)
    tl.store(squares + at, tl.sum(deviation * deviation, 0), mask=there)


@triton.jit(do_not_specialize=["units"])
def take_in(
    x, buffer, means, squares, pixels, units, stride,
    UNIT: tl.constexpr, STATISTICS: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Copy x (pixels, channels) into the first columns of the buffer, and store statistics per tile."""
    channels = units * UNIT
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    there = c < channels
    inside = (p < pixels)[:, None] & there[None, :]
    values = tl.load(x + p.to(tl.int64)[:, None] * channels + c[None, :], mask=inside, other=0.0)
    tl.store(buffer + p.to(tl.int64)[:, None] * stride + c[None, :], values, mask=inside)
    if STATISTICS:
        tile_statistics(values, inside, there, c, pixels, means, squares, PIXELS)


@triton.jit
def combined_statistics(means, squares, row, there, pixels, tiles, PIXELS: tl.constexpr, TILES: tl.constexpr):
    """Combine the statistics of tiles into the mean and the sum of squared deviations of each row (Chan et al.)."""
    total = 0.0
    centre = tl.zeros(row.shape, tl.float32)
    square = tl.zeros(row.shape, tl.float32)
    for start in range(0, tiles, TILES):
        tile = start + tl.arange(0, TILES)
        count = tl.maximum(tl.minimum(pixels - tile * PIXELS, PIXELS), 0).to(tl.float32)
        at = row[:, None] * tiles + tile[None, :]
        inside = there[:, None] & (tile < tiles)[None, :]
        tile_mean = tl.load(means + at, mask=inside, other=0.0)
        tile_square = tl.load(squares + at, mask=inside, other=0.0)
        more = tl.sum(count, 0)
        more_mean = tl.sum(count[None, :] * tile_mean, 1) / more
        difference = tile_mean - more_mean[:, None]
        step = more_mean - centre
        centre += step * (more / (total + more))
        square += tl.sum(tile_square + count[None, :] * difference * difference, 1)
        square += step * step * (total * more / (total + more))
        total += more
    return centre, square


@triton.jit
def store_linear(mean, rstd, scale, shift, factor, offset, c, there, mine):
    """Store a norm as factor and offset for the channels in `mine`; both are 0 for channels that are not `there`."""
    slope = rstd * tl.load(scale + c, mask=there, other=0.0)
    tl.store(factor + c, slope, mask=mine)
    tl.store(offset + c, tl.load(shift + c, mask=there, other=0.0) - mean * slope, mask=mine)


@triton.jit(do_not_specialize=["first", "channels"])
def prepare(
    means, squares, mean, variance, rstd, scale, shift, weight, factor, offset, arranged,
    pixels, tiles, first, channels, stride, eps,
    GROWTH: tl.constexpr, LAYER: tl.constexpr, PIXELS: tl.constexpr, TILES: tl.constexpr, CHANNELS: tl.constexpr,
    ELEMENTS: tl.constexpr,
):  # fmt: skip
    """Compute the statistics of the channels from `first` on; `variance` is unbiased. For a LAYER, prepare `taps`.

    To prepare `taps` is to store the norm as factor and offset, which are 0 from `channels` on, and to rearrange the
    weights (k, 3, 3, channels) with the taps first.
    """
    new = tl.cdiv(channels - first, CHANNELS)  # programs
    program = tl.program_id(0)
    row = program * CHANNELS + tl.arange(0, CHANNELS)
    e = (program - new) * ELEMENTS + tl.arange(0, ELEMENTS)
    old = tl.cdiv(stride, ELEMENTS)
    if program < new:
        c = first + row
        inside = c < channels
        centre, square = combined_statistics(means, squares, row, inside, pixels, tiles, PIXELS, TILES)
        slope = 1.0 / tl.sqrt_rn(square / pixels + eps)
        tl.store(mean + c, centre, mask=inside)
        tl.store(variance + c, square / (pixels - 1.0), mask=inside)
        tl.store(rstd + c, slope, mask=inside)
        if LAYER:
            store_linear(centre, slope, scale, shift, factor, offset, c, inside, inside)
    elif LAYER:
        if program - new < old:
            known = e < first
            slopes = tl.load(rstd + e, mask=known, other=0.0)
            centres = tl.load(mean + e, mask=known, other=0.0)
            mine = known | (e >= channels) & (e < stride)
            store_linear(centres, slopes, scale, shift, factor, offset, e, known, mine)
        else:
            e -= old * ELEMENTS
            there = e < 9 * GROWTH * channels
            filter, channel = e // channels, e % channels
            at = arranged + (filter % 9 * GROWTH + filter // 9) * stride + channel
            tl.store(at, tl.load(weight + e, mask=there), mask=there)


@triton.jit(do_not_specialize=["channels"])
def taps(
    x, weight, factor, offset, tapped, channels,
    COLUMNS: tl.constexpr, PRECISION: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """tapped[p, n] = sum over c of relu(norm(x))[p, c] weight[n, c], for all nine taps: n = t k + j."""
    p = tl.program_id(0) * PIXELS
    n = tl.program_id(1) * COLUMNS
    total = tl.zeros((PIXELS, COLUMNS), tl.float32)
    # tl.assume(channels > 0) would let products overlap with the next loads, but up to Triton 3.8 the registers of
    # activations are then reused while a product may still read them (triton-lang/triton issue 9433)
    for start in range(0, channels, CHANNELS):
        c = start + tl.arange(0, CHANNELS)
        slope, constant = tl.load(factor + c), tl.load(offset + c)
        values = x.load([p, start]).to(tl.float32)
        w = weight.load([n, start])
        active = tl.maximum(values * slope[None, :] + constant[None, :], 0.0, tl.PropagateNan.ALL)
        total = tl.dot(active.to(w.dtype), tl.trans(w), total, input_precision=PRECISION)
    tapped.store([p, n], total.to(tapped.dtype))


@triton.jit(do_not_specialize=["units"])
def gather(
    tapped, buffer, means, squares, key, layer, pixels, units, stride,
    SIDE: tl.constexpr, UNIT: tl.constexpr, GROWTH: tl.constexpr, GROWTH_PADDED: tl.constexpr, WIDTH: tl.constexpr,
    THRESHOLD: tl.constexpr, SCALE: tl.constexpr, STATISTICS: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """buffer[p, channels + j] = dropout(sum over taps t of tapped[p + offset of t, t k + j]); statistics per tile."""
    column = units * UNIT + tl.arange(0, GROWTH_PADDED)
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    j = tl.arange(0, GROWTH_PADDED)
    place = p % (SIDE * SIDE)
    y, x = place // SIDE, place % SIDE
    total = tl.zeros((PIXELS, GROWTH_PADDED), tl.float32)
    for t in tl.static_range(9):
        dy, dx = t // 3 - 1, t % 3 - 1
        there = (p < pixels) & (y + dy >= 0) & (y + dy < SIDE) & (x + dx >= 0) & (x + dx < SIDE)
        at = tapped + (p + dy * SIDE + dx).to(tl.int64)[:, None] * WIDTH + (t * GROWTH + j)[None, :]
        total += tl.load(at, mask=there[:, None] & (j < GROWTH)[None, :], other=0.0).to(tl.float32)
    if THRESHOLD:
        total = dropped(total, key, layer, p, j, SIDE * SIDE, GROWTH, THRESHOLD, SCALE)
    values = total.to(buffer.dtype.element_ty)
    inside = (p < pixels)[:, None] & (j < GROWTH)[None, :]
    tl.store(buffer + p.to(tl.int64)[:, None] * stride + column[None, :], values, mask=inside)
    if STATISTICS:
        tile_statistics(values, inside, j < GROWTH, j, pixels, means, squares, PIXELS)


@triton.jit(do_not_specialize=["units", "side"])
def close(
    buffer, scale, shift, mean, rstd, out, outputs, units, stride, side, factor,
    UNIT: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """out[o, c] = mean of relu(norm(buffer)) over the factor x factor pixels that output pixel o covers."""
    channels = units * UNIT
    o = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    there = c < channels
    width = side // factor
    corner = (o // width) * (factor * side) + (o % width) * factor  # rows of output pixels are numbered across images
    inside = (o < outputs)[:, None] & there[None, :]
    centre = tl.load(mean + c, mask=there, other=0.0)[None, :]
    slope = (tl.load(scale + c, mask=there, other=0.0) * tl.load(rstd + c, mask=there, other=0.0))[None, :]
    offset = tl.load(shift + c, mask=there, other=0.0)[None, :]
    total = tl.zeros((PIXELS, CHANNELS), tl.float32)
    for step in tl.range(factor * factor, num_stages=4):
        p = corner + step // factor * side + step % factor
        x = tl.load(buffer + p.to(tl.int64)[:, None] * stride + c[None, :], mask=inside, other=0.0).to(tl.float32)
        total += tl.maximum((x - centre) * slope + offset, 0.0, tl.PropagateNan.ALL)
    at = out + o.to(tl.int64)[:, None] * channels + c[None, :]
    tl.store(at, (total / (factor * factor)).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["units", "side", "pixels_per_range"])
def close_backward(
    buffer, gradient, arriving, scale, shift, mean, rstd, sums, pixels, units, stride, side, factor, pixels_per_range,
    UNIT: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Start `arriving` with the gradient through the closing norm.

    Store four sums per range (ranges, 4, channels): the gradients of shift and scale, and the sums of the rounded
    gradient and of the rounded gradient times z.
    """
    channels = units * UNIT
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    there = c < channels
    centre = tl.load(mean + c, mask=there, other=0.0)[None, :]
    slope = tl.load(rstd + c, mask=there, other=0.0)[None, :]
    gain = tl.load(scale + c, mask=there, other=0.0)[None, :]
    offset = tl.load(shift + c, mask=there, other=0.0)[None, :]
    width = side // factor
    to_shift = tl.zeros((PIXELS, CHANNELS), tl.float32)
    to_scale = tl.zeros((PIXELS, CHANNELS), tl.float32)
    arrived = tl.zeros((PIXELS, CHANNELS), tl.float32)
    arrived_z = tl.zeros((PIXELS, CHANNELS), tl.float32)
    begin = tl.program_id(1) * pixels_per_range
    for start in tl.range(begin, tl.minimum(begin + pixels_per_range, pixels), PIXELS, num_stages=3):
        p = start + tl.arange(0, PIXELS)
        inside = (p < pixels)[:, None] & there[None, :]
        at = p.to(tl.int64)[:, None] * stride + c[None, :]
        image_row = p // side  # numbered across images; side is a multiple of factor
        o = image_row // factor * width + p % side // factor
        z = (tl.load(buffer + at, mask=inside, other=0.0).to(tl.float32) - centre) * slope
        g = tl.load(gradient + o.to(tl.int64)[:, None] * channels + c[None, :], mask=inside, other=0.0).to(tl.float32)
        g = tl.where(z * gain + offset <= 0, 0.0, g / (factor * factor))
        rounded = (g * gain).to(arriving.dtype.element_ty)
        tl.store(arriving + at, rounded, mask=inside)
        to_shift += g
        to_scale += g * z
        arrived += rounded.to(tl.float32)
        arrived_z += rounded.to(tl.float32) * z
    at = sums + tl.program_id(1) * 4 * channels + c
    tl.store(at, tl.sum(to_shift, 0), mask=there)
    tl.store(at + channels, tl.sum(to_scale, 0), mask=there)
    tl.store(at + 2 * channels, tl.sum(arrived, 0), mask=there)
    tl.store(at + 3 * channels, tl.sum(arrived_z, 0), mask=there)


@triton.jit
def corrected(buffer, arriving, mean, rstd, sum_g, sum_gz, at, c, inside, there, pixels):
    """The gradient of some columns of the buffer, from the sums in `arriving`."""
    slope = tl.load(rstd + c, mask=there, other=0.0)[None, :]
    z = tl.load(buffer + at, mask=inside, other=0.0).to(tl.float32) - tl.load(mean + c, mask=there, other=0.0)[None, :]
    g = tl.load(arriving + at, mask=inside, other=0.0).to(tl.float32)
    mean_g = tl.load(sum_g + c, mask=there, other=0.0)[None, :] / pixels
    mean_gz = tl.load(sum_gz + c, mask=there, other=0.0)[None, :] / pixels
    return slope * (g - mean_g - z * slope * mean_gz)


@triton.jit(do_not_specialize=["units"])
def outgoing(
    buffer, arriving, mean, rstd, sum_g, sum_gz, views, key, layer, pixels, units, stride,
    SIDE: tl.constexpr, UNIT: tl.constexpr, GROWTH: tl.constexpr, GROWTH_PADDED: tl.constexpr, WIDTH: tl.constexpr,
    THRESHOLD: tl.constexpr, SCALE: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """views[p, t k + j] = gradient of channel j of the convolution at the output pixel that reads p with tap t."""
    q = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    j = tl.arange(0, GROWTH_PADDED)
    column = units * UNIT + j
    inside = (q < pixels)[:, None] & (j < GROWTH)[None, :]
    at = q.to(tl.int64)[:, None] * stride + column[None, :]
    g = corrected(buffer, arriving, mean, rstd, sum_g, sum_gz, at, column, inside, j < GROWTH, pixels)
    if THRESHOLD:
        g = dropped(g, key, layer, q, j, SIDE * SIDE, GROWTH, THRESHOLD, SCALE)
    values = g.to(views.dtype.element_ty)
    place = q % (SIDE * SIDE)
    y, x = place // SIDE, place % SIDE
    for t in tl.static_range(9):
        dy, dx = t // 3 - 1, t % 3 - 1
        there = (y + dy >= 0) & (y + dy < SIDE) & (x + dx >= 0) & (x + dx < SIDE)
        at = views + (q + dy * SIDE + dx).to(tl.int64)[:, None] * WIDTH + (t * GROWTH + j)[None, :]
        tl.store(at, values, mask=there[:, None] & inside)


@triton.jit(do_not_specialize=["units", "pixels_per_range"])
def layer_backward(
    buffer, arriving, views, weight, scale, shift, mean, rstd, weight_sums, sums, pixels, units, pixels_per_range,
    UNIT: tl.constexpr, GROWTH: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Add to `arriving`; store gradients per range: weights (ranges, 9 k, channels), norm (ranges, 2, channels)."""
    channels = units * UNIT
    c0 = tl.program_id(0) * CHANNELS
    c = c0 + tl.arange(0, CHANNELS)
    there = c < channels
    centre = tl.load(mean + c, mask=there, other=0.0)
    slope = tl.load(rstd + c, mask=there, other=0.0)
    gain = tl.load(scale + c, mask=there, other=0.0)
    factor = gain * slope
    offset = tl.load(shift + c, mask=there, other=0.0) - centre * factor
    n = tl.arange(0, COLUMNS)
    used = n < 9 * GROWTH
    filters = weight + (n % GROWTH * 9 + n // GROWTH)[:, None] * channels
    w = tl.trans(tl.load(filters + c[None, :], mask=used[:, None] & there[None, :], other=0.0))
    to_weight = tl.zeros((CHANNELS, COLUMNS), tl.float32)
    # in the loop each thread adds up its own values; the threads are added up once, at the end
    to_shift = tl.zeros((CHANNELS, 8), tl.float32)
    to_scale = tl.zeros((CHANNELS, 8), tl.float32)
    begin = tl.program_id(1) * pixels_per_range
    end = tl.minimum(begin + pixels_per_range, pixels)
    tl.assume(begin < end)
    for p in tl.range(begin, end, PIXELS, num_stages=STAGES):
        d = views.load([p, 0])
        x = tl.trans(buffer.load([p, c0])).to(tl.float32)
        active = x * factor[:, None] + offset[:, None]
        activations = tl.maximum(active, 0.0, tl.PropagateNan.ALL).to(d.dtype)
        product = tl.dot(w, tl.trans(d), input_precision=PRECISION)
        to_weight = tl.dot(activations, d, to_weight, input_precision=PRECISION)
        g = tl.where(active <= 0, 0.0, product)
        sent = (gain[:, None] * g).to(arriving.dtype)
        arriving.atomic_add([p, c0], tl.trans(sent))  # by the copy engine; no other program adds here
        to_shift += tl.sum(tl.reshape(g, (CHANNELS, PIXELS // 8, 8)), 1)
        to_scale += tl.sum(tl.reshape(g * x, (CHANNELS, PIXELS // 8, 8)), 1)
    at = weight_sums + (tl.program_id(1) * 9 * GROWTH + n).to(tl.int64)[None, :] * channels + c[:, None]
    tl.store(at, to_weight, mask=used[None, :] & there[:, None])
    at = sums + tl.program_id(1) * 2 * channels + c
    sum_g = tl.sum(to_shift, 1)
    tl.store(at, sum_g, mask=there)
    tl.store(at + channels, (tl.sum(to_scale, 1) - centre * sum_g) * slope, mask=there)


@triton.jit
def added_up(values, e, there, length, ranges, RANGES: tl.constexpr, ELEMENTS: tl.constexpr):
    """Sum the elements e of `values` over the ranges; each range has `length` elements."""
    total = tl.zeros((ELEMENTS,), tl.float32)
    for start in range(0, ranges, RANGES):
        r = start + tl.arange(0, RANGES)
        at = values + r.to(tl.int64)[:, None] * length + e[None, :]
        total += tl.sum(tl.load(at, mask=(r < ranges)[:, None] & there[None, :], other=0.0), 0)
    return total


@triton.jit(do_not_specialize=["units", "ranges"])
def combine(
    weight_sums, sums, scale, to_weight, to_shift, to_scale, sum_g, sum_gz, units, ranges,
    UNIT: tl.constexpr, GROWTH: tl.constexpr, ROWS: tl.constexpr, RANGES: tl.constexpr, ELEMENTS: tl.constexpr,
):  # fmt: skip
    """Sum gradients over the ranges: the first programs for the weights (ROWS = 9 k, or 0), the others for the norm."""
    channels = units * UNIT
    programs = tl.cdiv(ROWS * channels, ELEMENTS)
    if tl.program_id(0) < programs:
        e = tl.program_id(0) * ELEMENTS + tl.arange(0, ELEMENTS)
        there = e < ROWS * channels
        total = added_up(weight_sums, e, there, ROWS * channels, ranges, RANGES, ELEMENTS)
        n, c = e // channels, e % channels
        at = to_weight + (n % GROWTH * 9 + n // GROWTH) * channels + c
        tl.store(at, total.to(to_weight.dtype.element_ty), mask=there)
    else:
        c = (tl.program_id(0) - programs) * ELEMENTS + tl.arange(0, ELEMENTS)
        there = c < channels
        length = (2 if ROWS else 4) * channels
        shift_total = added_up(sums, c, there, length, ranges, RANGES, ELEMENTS)
        scale_total = added_up(sums + channels, c, there, length, ranges, RANGES, ELEMENTS)
        tl.store(to_shift + c, shift_total, mask=there)
        tl.store(to_scale + c, scale_total, mask=there)
        if ROWS:
            gain = tl.load(scale + c, mask=there, other=0.0)
            total_g = tl.load(sum_g + c, mask=there, other=0.0) + gain * shift_total
            total_gz = tl.load(sum_gz + c, mask=there, other=0.0) + gain * scale_total
        else:  # the closing norm: it has no weights and comes first
            total_g = added_up(sums + 2 * channels, c, there, length, ranges, RANGES, ELEMENTS)
            total_gz = added_up(sums + 3 * channels, c, there, length, ranges, RANGES, ELEMENTS)
        tl.store(sum_g + c, total_g, mask=there)
        tl.store(sum_gz + c, total_gz, mask=there)


@triton.jit(do_not_specialize=["units"])
def incoming(
    buffer, arriving, mean, rstd, sum_g, sum_gz, out, pixels, units, stride,
    UNIT: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Store the gradient of the block's input: (pixels, channels)."""
    channels = units * UNIT
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    there = c < channels
    inside = (p < pixels)[:, None] & there[None, :]
    at = p.to(tl.int64)[:, None] * stride + c[None, :]
    g = corrected(buffer, arriving, mean, rstd, sum_g, sum_gz, at, c, inside, there, pixels)
    tl.store(out + p.to(tl.int64)[:, None] * channels + c[None, :], g.to(out.dtype.element_ty), mask=inside)
