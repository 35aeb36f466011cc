// SPDX-License-Identifier: Apache-2.0
#include "core/core_system.h"

#include <stdlib.h>

struct tsri_system tsri_system = {aligned_alloc, free, pthread_create};
