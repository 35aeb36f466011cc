// SPDX-License-Identifier: Apache-2.0
// Matmul on CUDA: all kernels of the operation, for every variant, by index.
#include "ops/matmul/cuda/matmul_cuda.h"

// 16-bit products use tensor cores; on Hopper all use wgmma, except groups of few rows and products with large k and
// few tiles.
static bool list_tiles(enum matmul_cuda_kind kind, tsr_dtype dtype, bool is_listed, int cuda_arch,
                       int *index, struct tsri_cuda_program *program) {
    int num_tiles;
    const struct matmul_cuda_tile *tiles = matmul_cuda_tiles(kind, &num_tiles);
    for (int i = 0; i < num_tiles; i++) {
        if (!matmul_cuda_has_tile(kind, i, dtype, is_listed) || (*index)-- > 0) continue;
        *program = matmul_cuda_tile_program(kind, &tiles[i], dtype, false, is_listed);
        program->is_rare =
            kind == MATMUL_FMA ? dtype != TSR_F32 : cuda_arch == 90 && tiles[i].block_m > 32;
        if (is_listed) program->is_rare |= kind == MATMUL_FMA || dtype == TSR_F16;
        return true;
    }
    return false;
}

bool matmul_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    for (int d = 0; d < TSRI_NUM_CUDA_DTYPES; d++) {
        tsr_dtype dtype = tsri_cuda_dtypes[d];
        if (list_tiles(MATMUL_FMA, dtype, false, cuda_arch, &index, program)) return true;
        if (dtype != TSR_F32 && index-- == 0) {
            int num_tiles;
            const struct matmul_cuda_tile *tiles = matmul_cuda_tiles(MATMUL_FMA, &num_tiles);
            *program = matmul_cuda_tile_program(MATMUL_FMA, &tiles[MATMUL_FMA_FP8_TILE], dtype,
                                                true, false);
            program->is_rare = dtype == TSR_F16 || cuda_arch == 90;
            return true;
        }
        if (dtype != TSR_F32 && cuda_arch == 90 && matmul_cuda_fp8_kernel(&index, dtype, program))
            return true;
        if (dtype != TSR_F32 && cuda_arch >= 80 &&
            list_tiles(MATMUL_MMA, dtype, false, cuda_arch, &index, program))
            return true;
        if (dtype != TSR_F32 && cuda_arch == 90 && matmul_cuda_wgmma_kernel(&index, dtype, program))
            return true;
        if (dtype != TSR_F32 && cuda_arch == 90 && matmul_cuda_split_kernel(&index, dtype, program))
            return true;
        if (dtype == TSR_F32 && cuda_arch == 90 && matmul_cuda_f32_kernel(&index, program))
            return true;
        *program = tsri_cuda_dtype_program("ops/matmul/cuda/matmul_gemv.cu", "matmul_gemv", dtype);
        program->is_rare = dtype != TSR_F32;
        if (index-- == 0) return true;
        *program = matmul_cuda_reduce_program(dtype);
        program->is_rare = dtype == TSR_F16 && cuda_arch == 90;
        if (index-- == 0) return true;
        *program =
            dtype == TSR_F16 ? matmul_cuda_lines8_program() : matmul_cuda_copy_program(dtype);
        if (index-- == 0) return true;
        if (dtype == TSR_F32) continue;
        *program = matmul_cuda_widening_program(dtype);
        program->is_rare = true;
        if (index-- == 0) return true;
    }
    return false;
}

bool matmul_cuda_listed_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    for (int d = 0; d < TSRI_NUM_CUDA_DTYPES; d++) {
        const tsr_dtype dtype = tsri_cuda_dtypes[d];
        if (list_tiles(MATMUL_FMA, dtype, true, cuda_arch, &index, program)) return true;
        if (dtype != TSR_F32 && cuda_arch >= 80 &&
            list_tiles(MATMUL_MMA, dtype, true, cuda_arch, &index, program))
            return true;
    }
    return false;
}
