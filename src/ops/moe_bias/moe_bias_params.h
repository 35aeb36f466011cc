// SPDX-License-Identifier: Apache-2.0
// The parameters of the CUDA kernels of the biases' gradients, passed by value. Both compilers read this file: no library headers.
#ifndef TSRI_MOE_BIAS_PARAMS_H
#define TSRI_MOE_BIAS_PARAMS_H

enum {
    MOE_BIAS_PART = 512, // rows of an expert that are summed at once
};

#endif
