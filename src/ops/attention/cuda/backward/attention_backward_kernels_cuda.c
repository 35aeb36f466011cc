// SPDX-License-Identifier: Apache-2.0
// Every kernel of attention's backward on CUDA, by index.
#include "ops/attention/cuda/backward/attention_backward_cuda.h"

bool attention_cuda_backward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    if (attention_backward_shared_kernel(&index, cuda_arch, program) ||
        attention_backward_flash1_kernel(&index, cuda_arch, program) ||
        attention_backward_flash2_kernel(&index, cuda_arch, program))
        return true;
    return cuda_arch == 90 && (attention_backward_flash3_kernel(&index, program) ||
                               attention_backward_small_kernel(&index, program));
}
