// SPDX-License-Identifier: Apache-2.0
// Tiles of the kernels of few keys, forward and backward: rows are loaded several at a time, and products take their columns by
// halves. The includer includes attention_mma.cuh.
#ifndef TSRI_ATTENTION_SMALL_TILES_CUH
#define TSRI_ATTENTION_SMALL_TILES_CUH

#define AT_A_TIME 4 // rows of a thread, without a branch

// Loads rows first to first + count into a tile of `rows`. at: this thread's first piece; its next rows are `step` bytes apart.
// Reads `bytes` bytes of each piece, and nothing from row `end` on; the rest is zero.
DEVICE void load_pieces(unsigned tile, const char *at, long long step, int bytes, int rows,
                        int first, int count, int end) {
    tile += piece_at(MY_ROW, MY_PIECE, rows);
#pragma unroll 1
    for (int r = MY_ROW; r < count; r += AT_A_TIME * ROW_STEP) {
#pragma unroll
        for (int n = 0; n < AT_A_TIME; n++)
            if (r + n * ROW_STEP < count)
                copy_async(tile + n * SLAB_BYTES(ROW_STEP), at + n * step,
                           first + r + n * ROW_STEP < end ? bytes : 0);
        tile += AT_A_TIME * SLAB_BYTES(ROW_STEP);
        at += AT_A_TIME * step;
    }
}

// Address of the d-th 16 columns of a tile, from a lane's first address: pieces advance by exclusive or within 64 columns. slab:
// bytes of 64 columns of all rows.
#define SLAB_COLUMNS(at, d, slab) (((at) ^ ((d) % 4 * 32)) + (d) / 4 * (slab))
// Steps beyond the head's columns are skipped, by halves.
#define EACH_STEP(d, dims)                                                                         \
    _Pragma("unroll") for (int half_ = 0; half_ < 2;                                               \
                           half_++) if (half_ == 0 || (dims) > HEAD_DIM / 2)                       \
        _Pragma("unroll") for (int d = half_ * (HEAD_DIM / 32); d < (half_ + 1) * (HEAD_DIM / 32); \
                               d++)

// Stores a piece from a tile to element `to` of a tensor whose row has `left` elements left.
DEVICE void store_piece(void *data, long long to, const unsigned char *from, int left) {
    if (left >= GROUP)
        store_bytes(data, to, *(const uint4 *)from);
    else
        for (int c = 0; c < left; c++) ((ELEMENT *)data)[to + c] = ((const ELEMENT *)from)[c];
}

#endif
