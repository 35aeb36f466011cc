// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of grouped matmul: sizes, the first row of each group, and storage for a and b of any dtype. One
// test program includes this file.
#ifndef MATMUL_GROUPED_CASE_H
#define MATMUL_GROUPED_CASE_H

#include "test_support.h"

enum { ROWS = 90, K = 72, N = 40, GROUPS = 5, MOST = GROUPS * ROWS, GUARD = 64 };

static const int32_t offsets[GROUPS + 1] = {3, 3, 40, 41, 77, 85};

static _Alignas(64) unsigned char a[MOST * K * 8], b[GROUPS * K * N * 8];

#endif
