// SPDX-License-Identifier: Apache-2.0
// Zeros in dbias of 16 bits, with every dimension, where flash3's backward does not come: tiles whose queries see none of
// their keys. A block takes 128 keys of a head.
#define ANY_DTYPE
#include "ops/attention/attention_backward_device.cuh"
#include "ops/attention/attention_backward_flash3_params.h"

#define THREADS 256
#define PIECE 8 // elements of 16 bytes

// Rows [begin, end) of the block's columns.
DEVICE void clear_rows(unsigned short *to, long long stride, int begin, int end, int cols) {
    const int piece = threadIdx.x % (FLASH3_OWNED / PIECE) * PIECE, left = cols - piece;
    for (int row = begin + threadIdx.x / (FLASH3_OWNED / PIECE); row < end;
         row += THREADS / (FLASH3_OWNED / PIECE)) {
        unsigned short *at = to + row * stride + piece;
        if (left >= PIECE)
            *(uint4 *)at = make_uint4(0, 0, 0, 0);
        else
            for (int c = 0; c < left; c++) at[c] = 0;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_backward_bias_hidden(
    const __grid_constant__ struct attention_backward_flash3_params f) {
    const struct attention_params *p = &f.b.p;
    const int passing = FLASH3_PASSING(f.tile_dims);
    wait_for_primary();
    for (long long index = blockIdx.x; index < f.b.num_tasks; index += gridDim.x) {
        const int key = (int)(index % f.b.num_tiles) * FLASH3_OWNED;
        const int head = (int)(index / f.b.num_tiles % p->num_heads_q);
        const int batch = (int)(index / f.b.num_tiles / p->num_heads_q);
        const struct attention_sequence s = attention_sequence_at(p, batch);
        const int key_end = key + FLASH3_OWNED < s.len_k ? key + FLASH3_OWNED : s.len_k;
        const int rows = p->dbias.shape[2], cols = p->dbias.shape[3] - key;
        unsigned short *to = (unsigned short *)p->dbias.data + batch * p->dbias.stride[0] +
                             head * p->dbias.stride[1] + key;
        int first = rows, end = rows; // whole tiles, as set_task finds them
        if (key < key_end) {
            first = attention_first_query(p, &s, key) / passing * passing;
            end = attention_end_query(p, &s, key_end - 1);
            end = end <= first ? first : (end - 1) / passing * passing + passing;
        }
        clear_rows(to, p->dbias.stride[2], 0, first < rows ? first : rows, cols);
        clear_rows(to, p->dbias.stride[2], end, rows, cols);
    }
}
