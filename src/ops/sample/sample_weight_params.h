// SPDX-License-Identifier: Apache-2.0
// What decides which token is drawn. Every variant computes it by exactly these operations, each rounded by itself, so that all
// draw alike, on every device. Both compilers read this file: no library headers. The includer defines
//     SAMPLE_FUNCTION, and of floats SAMPLE_ADD, SAMPLE_MUL and SAMPLE_DIV (never fused), SAMPLE_MAX (of numbers),
//     SAMPLE_ROUND (to the nearest integer, ties to even; 0 <= x <= 2^40), and SAMPLE_SCALED(p, t): p 2^m, where the low bits of t
//     are the integer m and the result is a normal number
#ifndef TSRI_SAMPLE_WEIGHT_PARAMS_H
#define TSRI_SAMPLE_WEIGHT_PARAMS_H

#define SAMPLE_LARGEST 0x1.fffffep127f
// The weight of the most probable token. The weights of 2^22 tokens sum to less than 2^63.
#define SAMPLE_ONE 0x1p40f
#define SAMPLE_LOG2_ONE 40
// 2^40 2^x rounds to 0 here, and below.
#define SAMPLE_LEAST (-42.0f)
// A sum with it is rounded to an integer n; the low bits are those of n + 40.
#define SAMPLE_SHIFT (0x1.8p23f + SAMPLE_LOG2_ONE)
#define SAMPLE_LOG2E 0x1.715476p0f
// A polynomial of degree 5 for 2^f, |f| <= 1/2, that is exactly 1 for f = 0.
#define SAMPLE_EXP2_5 1.326472498e-03f
#define SAMPLE_EXP2_4 9.671512991e-03f
#define SAMPLE_EXP2_3 5.550733581e-02f
#define SAMPLE_EXP2_2 2.402224243e-01f
#define SAMPLE_EXP2_1 6.931470037e-01f
#define SAMPLE_EXP2_0 1.0f

// Of a row, after defaults.
struct sample_options {
    float temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    int top_k;
};

SAMPLE_FUNCTION int sample_is_finite(float x) {
    return x >= -SAMPLE_LARGEST && x <= SAMPLE_LARGEST;
}
SAMPLE_FUNCTION int sample_is_share(float x) { return x >= 0 && x <= 1; }

// A repetition_penalty of 0 is none.
SAMPLE_FUNCTION float sample_repetition_penalty(float x) { return x == 0 ? 1.0f : x; }

SAMPLE_FUNCTION int sample_are_options_valid(const struct sample_options *o) {
    return o->temperature >= 0 && sample_is_finite(o->temperature) && sample_is_share(o->top_p) &&
           sample_is_share(o->min_p) && o->repetition_penalty > 0 &&
           sample_is_finite(o->repetition_penalty) && sample_is_finite(o->presence_penalty) &&
           sample_is_finite(o->frequency_penalty);
}

// A logit x of a token that occurs `count` > 0 times in history.
SAMPLE_FUNCTION float sample_penalised(float x, int count, const struct sample_options *o) {
    x = x > 0 ? SAMPLE_DIV(x, o->repetition_penalty) : SAMPLE_MUL(x, o->repetition_penalty);
    x = SAMPLE_ADD(x, -SAMPLE_MUL((float)count, o->frequency_penalty));
    return SAMPLE_ADD(x, -o->presence_penalty);
}

// z. NaN stays NaN.
SAMPLE_FUNCTION float sample_bounded(float x) { return x > SAMPLE_LARGEST ? SAMPLE_LARGEST : x; }

// What z - max z is multiplied by, for a temperature above 0.
SAMPLE_FUNCTION float sample_scale(float temperature) {
    return sample_bounded(SAMPLE_DIV(SAMPLE_LOG2E, temperature));
}

// w before it is rounded to an integer. scale: sample_scale.
SAMPLE_FUNCTION float sample_real_weight(float z, float max, float scale) {
    const float x = SAMPLE_MAX(SAMPLE_MUL(SAMPLE_ADD(z, -max), scale), SAMPLE_LEAST);
    const float t = SAMPLE_ADD(x, SAMPLE_SHIFT), f = SAMPLE_ADD(x, -SAMPLE_ADD(t, -SAMPLE_SHIFT));
    float p = SAMPLE_ADD(SAMPLE_MUL(SAMPLE_EXP2_5, f), SAMPLE_EXP2_4);
    p = SAMPLE_ADD(SAMPLE_MUL(p, f), SAMPLE_EXP2_3);
    p = SAMPLE_ADD(SAMPLE_MUL(p, f), SAMPLE_EXP2_2);
    p = SAMPLE_ADD(SAMPLE_MUL(p, f), SAMPLE_EXP2_1);
    p = SAMPLE_ADD(SAMPLE_MUL(p, f), SAMPLE_EXP2_0);
    return SAMPLE_SCALED(p, t);
}

SAMPLE_FUNCTION float sample_weight(float z, float max, float scale) {
    return SAMPLE_ROUND(sample_real_weight(z, max, scale));
}

// floor(a b / 2^64). *low: the rest.
SAMPLE_FUNCTION unsigned long long sample_high_product(unsigned long long a, unsigned long long b,
                                                       unsigned long long *low) {
    const unsigned long long a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
    const unsigned long long middle = a1 * b0 + (a0 * b0 >> 32);
    const unsigned long long other = a0 * b1 + (middle & 0xffffffffu);
    *low = a * b;
    return a1 * b1 + (middle >> 32) + (other >> 32);
}

// The tokens of step 5 are those before which the weights sum to less than this: top_p sum, rounded up, at least 1. top_p < 1.
SAMPLE_FUNCTION unsigned long long sample_needed(float top_p, unsigned long long sum) {
    unsigned long long low;
    const unsigned long long share = (unsigned long long)SAMPLE_MUL(top_p, 0x1p64f);
    const unsigned long long whole = sample_high_product(share, sum, &low);
    const unsigned long long needed = whole + (low != 0);
    return needed > 0 ? needed : 1;
}

// A key has three digits, found one after the other from the high end; the last one has a bit of the second.
enum {
    SAMPLE_DIGIT_BITS = 11,
    SAMPLE_NUM_DIGITS = 1 << SAMPLE_DIGIT_BITS,
    SAMPLE_FIRST_SHIFT = 21,
    SAMPLE_SECOND_SHIFT = 10
};

// Larger numbers have larger keys; 0 and -0 have the same.
SAMPLE_FUNCTION unsigned sample_key(unsigned bits) {
    if (bits == 0x80000000u) bits = 0;
    return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}
SAMPLE_FUNCTION unsigned sample_bits_of_key(unsigned key) {
    return key ^ (key >> 31 ? 0x80000000u : 0xffffffffu);
}

#endif
