// SPDX-License-Identifier: Apache-2.0
// How a warp chooses a token's experts. Lane j has columns j, j + 32, ... of PER_LANE registers as keys, unsigned numbers in the
// order of what chooses. The file that includes this defines PER_LANE.
//
// An expert is 27 operations a round if each lane looks for its largest key and for its column. Instead a key's low bits are
// replaced by its column, so that all are different: lanes sort theirs by minima and maxima, and a round is one maximum of the
// warp and a shift in the lane that had it. Two of the chosen keys, or the last of them and the next, that are the same in the
// other bits are compared in full. If they differ, slow rounds choose: in about one token of 500 of random f32 logits at 128
// experts. Equal ones are in the right order. Logits of 16 bits need no comparison: the bits that are replaced say nothing.
#ifndef TSRI_MOE_ROUTE_CHOICE_CUH
#define TSRI_MOE_ROUTE_CHOICE_CUH

#include "ops/moe_route/moe_route_device.cuh"

#define EACH(i) _Pragma("unroll") for (int i = 0; i < PER_LANE; i++)
#define COLUMN(i) (LANE + 32 * (i))
enum { MOST_COLUMN = 32 * PER_LANE - 1 };

// The expert of the largest key, the lowest of equal ones. Its key becomes 0.
DEVICE int take_best(unsigned key[PER_LANE]) {
    unsigned best = 0;
    int column = 0;
#pragma unroll
    for (int i = PER_LANE - 1; i >= 0; i--)
        if (key[i] >= best) best = key[i], column = COLUMN(i);
    const unsigned most = __reduce_max_sync(ALL_LANES, best);
    const int id = (int)__reduce_min_sync(ALL_LANES, best == most ? (unsigned)column : ~0u);
    EACH(i) if (COLUMN(i) == id) key[i] = 0;
    return id;
}

// Largest first.
DEVICE void sort_lane(unsigned key[PER_LANE]) {
#pragma unroll
    for (int size = 2; size <= PER_LANE; size *= 2)
#pragma unroll
        for (int stride = size / 2; stride > 0; stride /= 2) EACH(i) {
                const int j = i ^ stride;
                if (j > i) {
                    const unsigned larger = max(key[i], key[j]), smaller = min(key[i], key[j]);
                    key[i] = i & size ? smaller : larger;
                    key[j] = i & size ? larger : smaller;
                }
            }
}

// The number of column `at` of each lane.
DEVICE unsigned bits_of(const unsigned bits[PER_LANE], int at) {
    unsigned mine = 0;
    EACH(i) {
        const unsigned other = __shfl_sync(ALL_LANES, bits[i], at % 32);
        if (at / 32 == i) mine = other;
    }
    return mine;
}

// Lane k < top_k gets the k-th expert. Keys of 0 are never chosen. has_16_bits: keys are those of 16-bit logits. Changes key.
DEVICE int choose(unsigned key[PER_LANE], int top_k, int has_16_bits) {
    unsigned sorted[PER_LANE], mine = 0, most = 0;
    EACH(i)
    sorted[i] = (key[i] & ~MOST_COLUMN) | (MOST_COLUMN - COLUMN(i)); // of key 0 below others
    sort_lane(sorted);
    for (int k = 0; k < top_k; k++) {
        most = __reduce_max_sync(ALL_LANES, sorted[0]);
        if (LANE == k) mine = most;
        if (sorted[0] == most) {
#pragma unroll
            for (int i = 0; i + 1 < PER_LANE; i++) sorted[i] = sorted[i + 1];
            sorted[PER_LANE - 1] = 0;
        }
    }
    most = __reduce_max_sync(ALL_LANES, sorted[0]); // the first that is left out
    const unsigned below = __shfl_down_sync(ALL_LANES, mine, 1);
    const unsigned next = LANE == top_k - 1 ? most : below;
    const int is_near = LANE < top_k && ((mine ^ next) & ~MOST_COLUMN) == 0;
    int id = MOST_COLUMN - (int)(mine & MOST_COLUMN), is_wrong = 0;
    if (!has_16_bits &&
        __any_sync(ALL_LANES, is_near)) { // beyond the last there may be larger ones
        const unsigned full = bits_of(key, id), other = __shfl_down_sync(ALL_LANES, full, 1);
        is_wrong = __any_sync(ALL_LANES, is_near && (LANE == top_k - 1 || full != other));
    }
    for (int k = 0; k < top_k && is_wrong; k++) {
        const int best = take_best(key);
        if (LANE == k) id = best;
    }
    return id;
}

// ---- Groups -----------------------------------------------------------------------------------

// A group's key from its two best; 0 if there is none.
DEVICE unsigned group_key_of(unsigned best, unsigned second) {
    const float other = second == 0 ? -INFINITE : float_of_key(second);
    return best == 0 ? 0 : key_of(moe_group_sum(float_of_key(best), other));
}

// Groups of 32: group i is register i of all lanes.
DEVICE void limit_groups_of_32(unsigned key[PER_LANE], int topk_groups, int is_group_max) {
    unsigned mine = 0, second = 0, is_left = 0; // lane i: of group i
    EACH(i) {
        const unsigned best = __reduce_max_sync(ALL_LANES, key[i]);
        if (LANE == i) mine = best;
    }
    if (!is_group_max) {
        EACH(i) {
            const unsigned best = __shfl_sync(ALL_LANES, mine, i);
            const int owner = __ffs((int)__ballot_sync(ALL_LANES, key[i] == best)) - 1;
            const unsigned next = __reduce_max_sync(ALL_LANES, LANE == owner ? 0 : key[i]);
            if (LANE == i) second = next;
        }
        mine = group_key_of(mine, second);
    }
    for (int n = 0; n < topk_groups; n++) {
        const unsigned most = __reduce_max_sync(ALL_LANES, mine);
        const int group = __ffs((int)__ballot_sync(ALL_LANES, mine == most)) - 1;
        if (LANE == group) mine = 0;
        is_left |= 1u << group;
    }
    EACH(i) if ((is_left >> i & 1) == 0) key[i] = 0;
}

// The key of the score of the group of `each` columns from `first`.
DEVICE unsigned group_key(const unsigned key[PER_LANE], int first, int each, int is_max) {
    unsigned best = 0, second = 0;
    EACH(i) {
        const unsigned k = (unsigned)(COLUMN(i) - first) < (unsigned)each ? key[i] : 0;
        second = k > best ? best : k > second ? k : second;
        best = k > best ? k : best;
    }
    const unsigned most = __reduce_max_sync(ALL_LANES, best);
    if (is_max) return most;
    const int owner = __ffs((int)__ballot_sync(ALL_LANES, best == most)) - 1;
    return group_key_of(most, __reduce_max_sync(ALL_LANES, LANE == owner ? second : best));
}

// Leaves the experts of the best groups. keys: one a group, this warp's.
DEVICE void limit_groups(unsigned key[PER_LANE], unsigned *keys, int num_groups, int topk_groups,
                         int each, int is_max) {
    unsigned is_left = 0; // a bit a column of this lane
    if (each == 32) {
        limit_groups_of_32(key, topk_groups, is_max);
        return;
    }
    for (int g = 0; g < num_groups; g++) {
        const unsigned of_group = group_key(key, g * each, each, is_max);
        if (LANE == g % 32) keys[g] = of_group;
    }
    for (int n = 0; n < topk_groups; n++) { // a lane reads only what it wrote
        unsigned best = 0;
        int group = 0;
        for (int g = LANE; g < num_groups; g += 32)
            if (keys[g] > best) best = keys[g], group = g;
        const unsigned most = __reduce_max_sync(ALL_LANES, best);
        group = (int)__reduce_min_sync(ALL_LANES, best == most ? (unsigned)group : ~0u);
        if (LANE == group % 32) keys[group] = 0;
        EACH(i) if ((unsigned)(COLUMN(i) - group * each) < (unsigned)each) is_left |= 1u << i;
    }
    EACH(i) if ((is_left >> i & 1) == 0) key[i] = 0;
}

#endif
