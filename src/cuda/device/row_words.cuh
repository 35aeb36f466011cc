// SPDX-License-Identifier: Apache-2.0
// Rows in registers that begin anywhere: they move in words of 4 bytes, one f32 or two 16-bit elements, because a
// multiprocessor has only so many loads in flight, and single 16-bit elements half empty each of them.
//
// A thread's words are pairs of columns (in f32 single ones) that do not depend on the row's address, so that sums have the
// same order wherever a row lies, and vectors of columns move in words too. A row that begins at an odd 16-bit element is
// shifted by one element against its words in memory: each word then takes half of the next lane's. So the lanes of a row's
// warp have adjacent words, a stretch of the row for each warp. Only the ends of rows and stretches move as single elements.
#ifndef TSRI_DEVICE_ROW_WORDS_CUH
#define TSRI_DEVICE_ROW_WORDS_CUH

#include "cuda/device/reduce.cuh"
#include "cuda/device/words.cuh"

#define NUM_WORDS (FLOATS_PER_THREAD / PER_WORD)
#define EACH_WORD(v) _Pragma("unroll") for (int v = 0; v < NUM_WORDS; v++)
#define ROW_LANE ((int)(threadIdx.x % ROW_LANES))
#define IS_LAST_LANE (ROW_LANE == ROW_LANES - 1)

// Makes the compiler repeat the comparisons of columns, because kept results take one register per element.
#define COMPARE_ANEW(cols) asm volatile("" : "+r"(cols))

// Placed between loads: keeps later loads from moving up, which would take registers for all of them.
#define NOT_ALL_AT_ONCE asm volatile("" ::: "memory")

// The first column of a thread's first word, and from each of its words to the next. A column is compared with the end of the
// row as a constant, v * WORD_STEP, with what is left of the row from the thread's first column on: that takes no registers.
#define WORD_STEP (PER_WORD == 1 ? THREADS_PER_ROW : 2 * ROW_LANES)
DEVICE int first_column(void) {
    return PER_WORD == 1 ? ROW_THREAD
                         : (ROW_THREAD / ROW_LANES * NUM_WORDS * ROW_LANES + ROW_LANE) * 2;
}
DEVICE int word_column(int v) { return first_column() + v * WORD_STEP; }

// The words of a row that begins `odd` elements into its first word; word NUM_WORDS is the one after the last lane's, if the
// row is odd. What is beyond the row becomes `fill`, a word of equal elements. The element in front of an odd row is read with
// it: memory begins at a multiple of 4 bytes, and so that element is in the same allocation. It is used for nothing.
DEVICE void load_words(unsigned raw[NUM_WORDS + 1], const void *data, long long at, int odd,
                       int cols, unsigned fill) {
    const char *from = (const char *)data + (at - odd + first_column()) * ELEMENT_BYTES;
    int left =
        cols > 0 ? cols - first_column() + odd : 0; // a word begins `odd` in front of its column
    COMPARE_ANEW(left);
    EACH_WORD(v) {
        const char *word = from + v * WORD_STEP * ELEMENT_BYTES;
        raw[v] = fill;
        if (v * WORD_STEP + PER_WORD <= left) raw[v] = *(const unsigned *)word;
        if (PER_WORD == 2 && v * WORD_STEP + 1 == left)
            raw[v] = *(const unsigned short *)word | (fill & 0xffff0000u);
    }
    raw[NUM_WORDS] = fill;
    if (odd && IS_LAST_LANE && NUM_WORDS * WORD_STEP - 2 * ROW_LANES + 2 < left)
        raw[NUM_WORDS] =
            *(const unsigned short *)(from + ((NUM_WORDS - 1) * WORD_STEP + 2) * ELEMENT_BYTES);
}

// Rows of at least a warp have a warp's lanes for themselves, and branch alike.
#define ARE_LANES_ALIKE (THREADS_PER_ROW >= 32)

// Makes pairs of columns of an odd row's words; all lanes of a warp call it.
DEVICE void join_words(unsigned raw[NUM_WORDS + 1], int odd) {
#if PER_WORD == 2
    if (ARE_LANES_ALIKE && !odd) return;
    EACH_WORD(v) { // the first lane's next word is the one after the last lane's
        const unsigned given = ROW_LANE == 0 && v + 1 < NUM_WORDS ? raw[v + 1] : raw[v];
        unsigned next = __shfl_sync(0xffffffffu, given, ROW_LANE + 1, ROW_LANES);
        if (v + 1 == NUM_WORDS && IS_LAST_LANE) next = raw[NUM_WORDS];
        const unsigned pair = __byte_perm(raw[v], next, 0x5432);
        raw[v] = ARE_LANES_ALIKE || odd ? pair : raw[v];
    }
#endif
}

// Between two uses of words: makes the compiler widen them anew, because kept floats take twice the registers.
#define WIDEN_ANEW(pairs) EACH_WORD(v) asm volatile("" : "+r"((pairs)[v]))

DEVICE void store_half(char *to, unsigned bits) { *(unsigned short *)to = (unsigned short)bits; }

// odd is a constant where the lanes are alike. left: columns from the thread's first on; to: the place of the first.
DEVICE void store_pairs_at(const unsigned pairs[NUM_WORDS], char *to, int odd, int left) {
    EACH_WORD(v) {
        const int col = v * WORD_STEP, is_first = v == 0 && ROW_LANE == 0,
                  is_last = v + 1 == NUM_WORDS && IS_LAST_LANE;
        char *word = to + (col - odd) * ELEMENT_BYTES;
        unsigned bits = pairs[v];
        if (PER_WORD == 2 && (!ARE_LANES_ALIKE || odd)) { // with the column before it
            const unsigned given = IS_LAST_LANE && v > 0 ? pairs[v > 0 ? v - 1 : 0] : bits;
            const unsigned before =
                __shfl_sync(0xffffffffu, given, ROW_LANE + ROW_LANES - 1, ROW_LANES);
            if (odd) bits = __byte_perm(before, bits, 0x5432);
        }
        if (odd ? col < left && !is_first : col + PER_WORD <= left) *(unsigned *)word = bits;
        if (PER_WORD == 1) continue;
        if (odd ? col < left && is_first : col + 1 == left)
            store_half(word + odd * ELEMENT_BYTES, pairs[v]);
        if (odd && col + 1 < left && (col + 2 >= left || is_last))
            store_half(word + 4, pairs[v] >> 16);
    }
}

// All lanes of a warp call it.
DEVICE void store_pairs(const unsigned pairs[NUM_WORDS], void *data, long long at, int cols) {
    const int odd = is_odd(data, at);
    char *to = (char *)data + (at + first_column()) * ELEMENT_BYTES;
    int left = cols - first_column();
    COMPARE_ANEW(left);
    if (!ARE_LANES_ALIKE)
        store_pairs_at(pairs, to, odd, left);
    else if (odd)
        store_pairs_at(pairs, to, 1, left);
    else
        store_pairs_at(pairs, to, 0, left);
}

// Whether a vector of DTYPE begins at a word; an absent one does.
DEVICE int is_in_words(const void *vector, int is_f32) {
    return (DTYPE == DTYPE_F32 || !is_f32) && !is_odd(vector, 0);
}

// Word v of a thread, of a vector beside a row; `left`: columns from the thread's first on.
DEVICE void load_word_beside(float x[PER_WORD], const void *vector, int v, int left, int is_f32,
                             int is_word) {
    const int col = first_column();
    if (is_word && v * WORD_STEP + PER_WORD <= left) {
        widen_word(*(const unsigned *)((const char *)vector + (long long)col * ELEMENT_BYTES +
                                       v * WORD_STEP * ELEMENT_BYTES),
                   x);
    } else {
#pragma unroll
        for (int i = 0; i < PER_WORD; i++)
            x[i] =
                v * WORD_STEP + i < left ? load_either(vector, col + v * WORD_STEP + i, is_f32) : 0;
    }
}

#endif
