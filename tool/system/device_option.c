// SPDX-License-Identifier: Apache-2.0
#include "system/device_option.h"

#include <stdio.h>
#include <string.h>

#include "commands/command.h"
#include "system/environment.h"
#include "system/options.h"

int device_parse(const char *command, const char *text, tsr_device *device) {
    int index = 0, end = 0;
    *device = (tsr_device){TSR_CPU, 0};
    if (text == NULL || strcmp(text, "cpu") == 0 || strcmp(text, "cpu:0") == 0) return -1;
    bool is_cuda = strcmp(text, "cuda") == 0 || (sscanf(text, "cuda:%d%n", &index, &end) == 1 &&
                                                 text[end] == '\0' && index >= 0);
    if (!is_cuda)
        return usage_error(command, "--device is '%s', expected cpu, cuda or cuda:N", text);
    *device = (tsr_device){TSR_CUDA, index};
    tsr_device_info info = TSR_DEVICE_INFO;
    if (tsr_device_info_get(*device, &info) == TSR_OK) {
        environment_set_device(*device);
        return -1;
    }
    static const char prefix[] = "device_info_get: ";
    const char *why = tsr_last_error();
    if (strncmp(why, prefix, sizeof prefix - 1) == 0) why += sizeof prefix - 1;
    fprintf(stderr, "tessera %s: %s\n", command, why);
    return EXIT_SKIPPED;
}

bool device_has_variant(tsr_device device, const tsr_variant_info *info) {
    return ((info->flags & TSR_VARIANT_CUDA) != 0) == (device.type == TSR_CUDA);
}

bool device_has_op(tsr_device device, const char *op) {
    tsr_variant_info info;
    for (int i = 0; i < tsr_variant_count(op); i++)
        if (tsr_variant_info_get(op, i, &info) == TSR_OK && device_has_variant(device, &info))
            return true;
    return false;
}

const char *device_baseline(tsr_device device, const struct op_spec *spec) {
    tsr_variant_info info;
    for (int i = 0; i < tsr_variant_count(spec->op); i++)
        if (tsr_variant_info_get(spec->op, i, &info) == TSR_OK &&
            device_has_variant(device, &info) && spec_is_baseline(spec, info.name))
            return info.name;
    return NULL;
}

const char *device_arch(const tsr_context *ctx) {
    static tsr_device_info info; // only one thread of the tool calls this
    tsr_device device = tsr_context_device(ctx);
    info = TSR_DEVICE_INFO;
    if (device.type == TSR_CUDA && tsr_device_info_get(device, &info) == TSR_OK) return info.arch;
    return tsr_isa_name(tsr_context_isa(ctx));
}
