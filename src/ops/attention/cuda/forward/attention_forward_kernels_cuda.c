// SPDX-License-Identifier: Apache-2.0
// Every kernel of attention's forward on CUDA, by index.
#include "ops/attention/cuda/forward/attention_forward_cuda.h"

bool attention_cuda_forward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    if (index-- == 0) {
        *program = attention_cuda_clear_program();
        return true;
    }
    if (cuda_arch == 90 && index-- == 0) {
        *program = attention_cuda_few_merge_program();
        return true;
    }
    for (int d = 0; d < TSRI_NUM_CUDA_DTYPES; d++) {
        tsr_dtype dtype = tsri_cuda_dtypes[d];
        if (attention_cuda_naive_kernel(&index, dtype, cuda_arch, program)) return true;
        if (cuda_arch == 90 && (attention_cuda_flash3_kernel(&index, dtype, program) ||
                                attention_cuda_small_kernel(&index, dtype, program) ||
                                attention_cuda_few_kernel(&index, dtype, program)))
            return true;
        if (attention_cuda_flash2_kernel(&index, dtype, cuda_arch, program) ||
            attention_cuda_flash1_kernel(&index, dtype, cuda_arch, program))
            return true;
    }
    return false;
}
