// SPDX-License-Identifier: Apache-2.0
// Tiles of the kernels of few keys, forward and backward: rows come into them several at a time, and products go through their
// columns by halves. The includer has attention_mma.cuh.
#ifndef TSRI_ATTENTION_SMALL_TILES_CUH
#define TSRI_ATTENTION_SMALL_TILES_CUH

#define AT_A_TIME 4 // rows of a thread, without a branch

// Rows first to first + count of a tile of `rows`, from `at`, this thread's first piece, on, every next row of its own `step` bytes
// later; of those from row `end` on nothing is read, and of the others `bytes` of a piece: what is not read is zero.
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

// Of 16 columns d of a tile, from where a lane has its first: pieces go on by exclusive or within 64 columns. slab: bytes of 64
// columns of all rows.
#define SLAB_COLUMNS(at, d, slab) (((at) ^ ((d) % 4 * 32)) + (d) / 4 * (slab))
// Halves of the columns that lie beyond the head's are left out.
#define EACH_STEP(d, dims)                                                                         \
    _Pragma("unroll") for (int half_ = 0; half_ < 2;                                               \
                           half_++) if (half_ == 0 || (dims) > HEAD_DIM / 2)                       \
        _Pragma("unroll") for (int d = half_ * (HEAD_DIM / 32); d < (half_ + 1) * (HEAD_DIM / 32); \
                               d++)

// A piece from a tile to element `to` of a tensor, of which its row has `left` more.
DEVICE void store_piece(void *data, long long to, const unsigned char *from, int left) {
    if (left >= GROUP)
        store_bytes(data, to, *(const uint4 *)from);
    else
        for (int c = 0; c < left; c++) ((ELEMENT *)data)[to + c] = ((const ELEMENT *)from)[c];
}

#endif
