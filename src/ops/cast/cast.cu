// SPDX-License-Identifier: Apache-2.0
// y = x (scale), of (rows, cols), between any two float formats. A unit holds as many elements as 16 bytes of the wider
// format, so that both accesses are coalesced; formats are branches that all threads take alike. The intermediate
// format is fp32, or f64 if one of the two formats is f64.
// Floor: x read once, y written once.
// Limit: memory; with 8 bits on one side instruction issue is the second floor.
// Figures: docs/kernels/elementwise.md.
// The host defines
//     UNIT: 8 if both formats have 16 bits or less, 4 with f32, 2 with f64
#include "ops/cast/cast_params.h"
#define DTYPE 2 // of the intermediate format; numbers.cuh needs one
#define AT_ONCE CAST_AT_ONCE
#include "cuda/device/elements.cuh"
#include "cuda/device/fp8.cuh"

#define F64 1
#define F32 2
#define BF16 3
#define F16 4
#define E4M3 5
#define E5M2 6

#if UNIT == 2
typedef double number;
#else
typedef float number;
#endif

DEVICE int bytes_of(int dtype) {
    return dtype == F64 ? 8 : dtype == F32 ? 4 : dtype == BF16 || dtype == F16 ? 2 : 1;
}

// ---- NaN keeps its sign, which the conversion instructions would drop ---------------------------------

DEVICE float with_sign(float x, unsigned sign) {
    return __uint_as_float(__float_as_uint(x) | (sign & 0x80000000u));
}
DEVICE unsigned sign_of(float x) { return __float_as_uint(x); }

DEVICE float signed_f16(unsigned bits) { return with_sign(float_of_f16(bits), bits << 16); }
DEVICE number scaled(number x, float scale) { return x != x ? x : x * scale; }

// ---- Between the intermediate number and narrower formats ---------------------------------------------

#if UNIT == 2
#define NUMBER(x) widen_f32(x)
DEVICE unsigned sign_of(double x) { return (unsigned)__double2hiint(x); }
DEVICE double widen_f32(float x) {
    return __hiloint2double(__double2hiint((double)x) | (int)(sign_of(x) & 0x80000000u),
                            __double2loint((double)x));
}
DEVICE float float_of(double x) { return with_sign((float)x, sign_of(x)); }
// Rounds to odd, so that the second rounding is correct: towards 0, with the last bit set if anything is lost.
DEVICE float odd_float_of(double x) {
    float nearest = float_of(x);
    double back = nearest;
    unsigned bits = __float_as_uint(nearest);
    bits -= fabs(back) > fabs(x) ? 1 : 0;
    bits |= back != x ? 1 : 0;
    return __uint_as_float(bits);
}
#else
#define NUMBER(x) (x)
DEVICE float float_of(float x) { return x; }
DEVICE float odd_float_of(float x) { return x; }
#endif

// Two numbers of 16 or 8 bits, the first in the low half.
DEVICE unsigned pair_of(number low, number high, int to) {
    float a = odd_float_of(low), b = odd_float_of(high);
    if (to == E4M3) return pair_to_e4m3(a, b);
    if (to == E5M2) return pair_to_e5m2(a, b);
    unsigned pair = to == BF16 ? pair_to_bf16(a, b) : pair_to_f16(a, b);
    return pair | (sign_of(b) & 0x80000000u) | (sign_of(a) >> 16 & 0x8000u);
}

// ---- Units ------------------------------------------------------------------------------------

DEVICE uint4 fetch(const char *at, int bytes) {
    uint4 raw = make_uint4(0, 0, 0, 0);
    if (bytes == 16)
        raw = load_bytes(at, 0);
    else if (bytes == 8)
        asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                     : "=r"(raw.x), "=r"(raw.y)
                     : "l"(at)
                     : "memory");
    else if (bytes == 4)
        raw.x = *(const unsigned *)at;
    else
        raw.x = *(const unsigned short *)at;
    return raw;
}

DEVICE void put(char *at, uint4 raw, int bytes) {
    if (bytes == 16)
        *(uint4 *)at = raw;
    else if (bytes == 8)
        *(uint2 *)at = make_uint2(raw.x, raw.y);
    else if (bytes == 4)
        *(unsigned *)at = raw.x;
    else
        *(unsigned short *)at = (unsigned short)raw.x;
}

DEVICE void numbers_of(number x[UNIT], uint4 raw, int from) {
    const unsigned word[4] = {raw.x, raw.y, raw.z, raw.w};
    switch (from) {
#if UNIT == 2
    case F64:
        EACH_ELEMENT(i) x[i] = __hiloint2double((int)word[2 * i + 1], (int)word[2 * i]);
        break;
#endif
#if UNIT <= 4
    case F32: EACH_ELEMENT(i) x[i] = NUMBER(__uint_as_float(word[i])); break;
#endif
    case BF16:
        EACH_ELEMENT(i) x[i] = NUMBER(float_of_bf16(word[i / 2] >> i % 2 * 16 & 0xffff));
        break;
    case F16: EACH_ELEMENT(i) x[i] = NUMBER(signed_f16(word[i / 2] >> i % 2 * 16 & 0xffff)); break;
    default:
#pragma unroll
        for (int i = 0; i < UNIT / 2; i++) {
            float pair[2];
            unsigned bits = word[i / 2] >> i % 2 * 16 & 0xffff;
            if (from == E4M3)
                floats_of_e4m3(pair, bits);
            else
                floats_of_e5m2(pair, bits);
            x[2 * i] = NUMBER(pair[0]);
            x[2 * i + 1] = NUMBER(pair[1]);
        }
    }
}

DEVICE uint4 raw_of(const number x[UNIT], int to) {
    unsigned word[4] = {0, 0, 0, 0};
#if UNIT == 2
    if (to == F64) {
        EACH_ELEMENT(i) {
            word[2 * i] = (unsigned)__double2loint(x[i]);
            word[2 * i + 1] = (unsigned)__double2hiint(x[i]);
        }
        return make_uint4(word[0], word[1], word[2], word[3]);
    }
#endif
#if UNIT <= 4
    if (to == F32) {
        EACH_ELEMENT(i) word[i] = __float_as_uint(float_of(x[i]));
        return make_uint4(word[0], word[1], word[2], word[3]);
    }
#endif
#pragma unroll
    for (int i = 0; i < UNIT / 2; i++) {
        unsigned pair = pair_of(x[2 * i], x[2 * i + 1], to);
        if (to == BF16 || to == F16)
            word[i] = pair;
        else
            word[i / 2] |= pair << i % 2 * 16;
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

// ---- One element ------------------------------------------------------------------------------

DEVICE number load_number(const void *data, long long at, int from) {
    switch (from) {
#if UNIT == 2
    case F64: return ((const double *)data)[at];
#endif
    case F32: return NUMBER(((const float *)data)[at]);
    case BF16: return NUMBER(float_of_bf16(((const unsigned short *)data)[at]));
    case F16: return NUMBER(signed_f16(((const unsigned short *)data)[at]));
    case E4M3: return NUMBER(float_of_e4m3(((const unsigned char *)data)[at]));
    default: return NUMBER(float_of_e5m2(((const unsigned char *)data)[at]));
    }
}

DEVICE void store_number(void *data, long long at, number x, int to) {
#if UNIT == 2
    if (to == F64) {
        ((double *)data)[at] = x;
        return;
    }
#endif
    if (to == F32)
        ((float *)data)[at] = float_of(x);
    else if (to == BF16 || to == F16)
        ((unsigned short *)data)[at] = (unsigned short)pair_of(x, 0, to);
    else
        ((unsigned char *)data)[at] = (unsigned char)pair_of(x, 0, to);
}

// Two elements at a time.
DEVICE void cast_elements(const struct cast_params *p, const struct spot *s) {
#pragma unroll 1
    for (int first = 0; first < UNIT; first += 2) {
        number x[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (has_element(s, first + i, p->grid.cols))
                x[i] = load_number(p->x.data, place_of(s, first + i, &p->x), p->from);
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (has_element(s, first + i, p->grid.cols))
                store_number(p->y.data, place_of(s, first + i, &p->y),
                             p->has_scale ? scaled(x[i], p->scale) : x[i], p->to);
    }
}

DEVICE void cast_tile(const struct cast_params *p, long long tile, int is_flat) {
    struct spot spots[AT_ONCE];
    uint4 raw[AT_ONCE];
    int x_bytes = bytes_of(p->from), y_bytes = bytes_of(p->to), are_whole = 1;
    find_spots(spots, &p->grid, tile, is_flat);
    EACH_SPOT(u) {
        are_whole &= spots[u].is_whole;
        if (spots[u].is_whole)
            raw[u] = fetch((const char *)p->x.data + place_of(&spots[u], 0, &p->x) * x_bytes,
                           UNIT * x_bytes);
    }
    EACH_SPOT(u) {
        number x[UNIT];
        if (!spots[u].is_whole) continue;
        numbers_of(x, raw[u], p->from);
        if (p->has_scale) EACH_ELEMENT(i) x[i] = scaled(x[i], p->scale);
        put((char *)p->y.data + place_of(&spots[u], 0, &p->y) * y_bytes, raw_of(x, p->to),
            UNIT * y_bytes);
    }
    if (are_whole) return;
#pragma unroll 1
    for (int u = 0; u < AT_ONCE; u++) {
        struct spot s = is_flat ? find_flat_spot(&p->grid, tile, u) : find_spot(&p->grid, tile, u);
        if (!s.is_whole) cast_elements(p, &s);
    }
}

extern "C" __global__ void __launch_bounds__(ELEMENTS_THREADS, CAST_BLOCKS)
    cast(const struct cast_params p) {
    EACH_TILE(tile, p.grid) {
        if (p.grid.is_flat)
            cast_tile(&p, tile, 1);
        else
            cast_tile(&p, tile, 0);
    }
}
