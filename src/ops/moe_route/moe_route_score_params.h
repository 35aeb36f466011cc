// SPDX-License-Identifier: Apache-2.0
// The fp32 scores that choose experts. Every variant computes them by exactly these operations, each rounded by itself, so
// that all choose alike, on every device. Both compilers read this file: no library headers. The includer defines
//     MOE_FUNCTION, and of floats MOE_ADD, MOE_MUL and MOE_DIV (never fused), MOE_ROUND (to the nearest integer, ties to
//     even) and MOE_POWER (2^n of an integral n from -126 to 0); MOE_MINUS_INF
#ifndef TSRI_MOE_ROUTE_SCORE_PARAMS_H
#define TSRI_MOE_ROUTE_SCORE_PARAMS_H

// Exponentials below e^-87 are 0, so that none is subnormal.
#define MOE_LEAST (-87.0f)
#define MOE_LOG2E 1.44269504089f
// ln 2 in two parts; n times the first is exact.
#define MOE_LN2 (-0x1.62e4p-1f)
#define MOE_LN2_REST (-0x1.7f7d1cp-20f)
// A polynomial of degree 6 for e^r, |r| <= ln 2 / 2.
#define MOE_EXP_6 0.00138368461346f
#define MOE_EXP_5 0.0083748157983f
#define MOE_EXP_4 0.0416682255669f
#define MOE_EXP_3 0.166664201699f
#define MOE_EXP_2 0.499999920798f
#define MOE_EXP_1 1.00000003632f
#define MOE_EXP_0 1.00000000055f
// Added to sums of sigmoids that divide.
#define MOE_SIGMOID_SUM 1e-20f

// Sums over experts, and over the chosen ones, are those of 32 sums: sum j is that of elements j, j + 32, ..., in order; then
// sum j + 16 is added to sum j, and so on by halves.
enum { MOE_NUM_SUMS = 32 };

// e^x for x <= 0 within three units of 2^-24. 0 for NaN.
MOE_FUNCTION float moe_exp(float x) {
    const int is_zero = !(x >= MOE_LEAST);
    x = is_zero ? MOE_LEAST : x;
    const float n = MOE_ROUND(MOE_MUL(x, MOE_LOG2E));
    const float r = MOE_ADD(MOE_ADD(x, MOE_MUL(n, MOE_LN2)), MOE_MUL(n, MOE_LN2_REST));
    float p = MOE_ADD(MOE_MUL(MOE_EXP_6, r), MOE_EXP_5);
    p = MOE_ADD(MOE_MUL(p, r), MOE_EXP_4);
    p = MOE_ADD(MOE_MUL(p, r), MOE_EXP_3);
    p = MOE_ADD(MOE_MUL(p, r), MOE_EXP_2);
    p = MOE_ADD(MOE_MUL(p, r), MOE_EXP_1);
    p = MOE_ADD(MOE_MUL(p, r), MOE_EXP_0);
    const float power = is_zero ? 0 : MOE_POWER(n); // a product with 0: compilers make no branch
    return MOE_MUL(p, power);
}

MOE_FUNCTION float moe_sigmoid(float x) {
    const float e = moe_exp(x < 0 ? x : -x);
    return MOE_DIV(x < 0 ? e : 1.0f, MOE_ADD(1.0f, e));
}

// sigmoid'(x) = s (1 - s), without cancellation. 0 for infinities.
MOE_FUNCTION float moe_sigmoid_slope(float x) {
    const float e = moe_exp(x < 0 ? x : -x), sum = MOE_ADD(1.0f, e);
    return MOE_DIV(e, MOE_MUL(sum, sum));
}

// What chooses an expert with logit x.
MOE_FUNCTION float moe_choice(float x, float score, float bias) {
    const float c = MOE_ADD(score, bias);
    return x == MOE_MINUS_INF || c != c ? MOE_MINUS_INF : c;
}

// A group's score of its two best; second is -inf if there is none.
MOE_FUNCTION float moe_group_sum(float best, float second) {
    return MOE_ADD(best, second == MOE_MINUS_INF ? 0.0f : second);
}

#endif
