// SPDX-License-Identifier: Apache-2.0
// RoPE's tables cos and sin (positions, rotary_dim / 2), in double. A thread takes one frequency and some positions; it
// computes the exact angle of the first position and rotates from one to the next. An angle is reduced as a number of
// half turns, its product with 1 / pi in two doubles, so that position 1,000,000 is as accurate as position 1.
// Floor: 8 bytes a position and pair written.
// Figures: docs/kernels/rope.md.
#include "ops/rope/rope_params.h"

static __device__ double frequency_of(const struct rope_table_params *p, int i) {
    double frequency =
        p->inv_freq != 0 ? (double)p->inv_freq[i] : pow(p->base, -(double)i / (double)p->half);
    if (!p->has_scaling) return frequency;
    double wavelength = 2 * 3.14159265358979323846 / frequency;
    double turns = p->original_max_position / wavelength;
    if (turns > p->high_freq_factor) return frequency;
    if (turns < p->low_freq_factor) return frequency / p->factor;
    double smooth = (turns - p->low_freq_factor) / (p->high_freq_factor - p->low_freq_factor);
    return (1 - smooth) * frequency / p->factor + smooth * frequency;
}

static __device__ void sine_and_cosine(double angle, double *sine, double *cosine) {
    const double high = 0x1.45f306dc9c883p-2, low = -0x1.6b01ec5417056p-56; // 1 / pi
    double turns = angle * high, whole = rint(turns);
    double rest = (turns - whole) + (fma(angle, high, -turns) + angle * low);
    double sign = whole - 2 * floor(0.5 * whole) == 0 ? 1 : -1; // odd half turns: -1
    *sine = sign * sinpi(rest);
    *cosine = sign * cospi(rest);
}

extern "C" __global__ void __launch_bounds__(ROPE_TABLE_THREADS)
    rope_table(const struct rope_table_params p) {
    long long step = (long long)gridDim.x * ROPE_TABLE_THREADS;
    long long thread = (long long)blockIdx.x * ROPE_TABLE_THREADS + threadIdx.x;
    for (; thread < p.threads; thread += step) {
        long long run = thread / p.half, first = run * ROPE_TABLE_RUN;
        long long last =
            first + ROPE_TABLE_RUN < p.num_positions ? first + ROPE_TABLE_RUN : p.num_positions;
        int i = (int)(thread - run * p.half);
        double frequency = frequency_of(&p, i), sine, cosine, step_sine, step_cosine;
        sine_and_cosine((double)first * frequency, &sine, &cosine);
        sine_and_cosine(frequency, &step_sine, &step_cosine);
        sine *= p.attention_factor;
        cosine *= p.attention_factor;
        for (long long position = first; position < last; position++) {
            double now = cosine;
            p.cos[position * p.cos_stride + i] = (float)cosine;
            p.sin[position * p.sin_stride + i] = (float)sine;
            cosine = cosine * step_cosine - sine * step_sine;
            sine = sine * step_cosine + now * step_sine;
        }
    }
}
