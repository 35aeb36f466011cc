// SPDX-License-Identifier: Apache-2.0
// Zeros in dbias (batch, heads, seqlen_q, seqlen_k) where flash3's backward does not come: tiles whose queries see none of their
// keys. A block takes 128 keys of a head.
// Floor: those elements written once.
// See docs/kernels/attention_backward_cuda.md (bias), which has figures of the whole call.
#define ANY_DTYPE
#include "ops/attention/cuda/backward/attention_backward_device.cuh"
#include "ops/attention/cuda/backward/flash3/attention_backward_flash3_params.h"

#define THREADS 256

// Clears rows [begin, end) of the block's columns, as far as these exist.
DEVICE void clear_rows(char *to, long long stride, int begin, int end, int bytes, int width) {
    const int pieces = width / 16, piece = (int)threadIdx.x % pieces * 16, left = bytes - piece;
    for (int row = begin + (int)threadIdx.x / pieces; row < end; row += THREADS / pieces) {
        char *at = to + row * stride + piece;
        if (left >= 16)
            *(uint4 *)at = make_uint4(0, 0, 0, 0);
        else
            for (int c = 0; c < left; c += 2) *(unsigned short *)(at + c) = 0;
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
        const int size = f.b.bias_dtype == DTYPE_F32 ? 4 : 2;
        const long long stride = p->dbias.stride[2] * size;
        char *to = (char *)p->dbias.data +
                   (batch * p->dbias.stride[0] + head * p->dbias.stride[1] + key) * size;
        int first = rows, end = rows; // whole tiles, as in set_task
        if (key < key_end) {
            first = attention_first_query(p, &s, key) / passing * passing;
            end = attention_end_query(p, &s, key_end - 1);
            end = end <= first ? first : (end - 1) / passing * passing + passing;
        }
        clear_rows(to, stride, 0, first < rows ? first : rows, cols * size, FLASH3_OWNED * size);
        clear_rows(to, stride, end, rows, cols * size, FLASH3_OWNED * size);
    }
}
