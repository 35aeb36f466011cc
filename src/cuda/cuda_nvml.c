// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_nvml.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "core/core_system.h"
#include "cuda/cuda_library.h"

static const struct tsri_cuda_library library = {"NVML", "TSR_LIBNVML", {"libnvidia-ml.so.1"}};

typedef struct nvml_device_st *nvml_device;
enum { NVML_OK = 0, NVML_CLOCK_SM = 1, NVML_CLOCK_MEMORY = 2, NVML_TEMPERATURE_GPU = 0 };

static struct {
    int (*init)(void);
    int (*by_pci)(const char *bus_id, nvml_device *);
    int (*clock)(nvml_device, int kind, unsigned *mhz);
    int (*power)(nvml_device, unsigned *milliwatts);
    int (*power_limit)(nvml_device, unsigned *milliwatts);
    int (*temperature)(nvml_device, int sensor, unsigned *celsius);
    int (*reasons)(nvml_device, unsigned long long *);
} nvml;
static bool is_loaded;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void) {
    static const struct {
        const char *name;
        void *field;
    } functions[] = {
        {"nvmlInit_v2", &nvml.init},
        {"nvmlDeviceGetHandleByPciBusId_v2", &nvml.by_pci},
        {"nvmlDeviceGetClockInfo", &nvml.clock},
        {"nvmlDeviceGetPowerUsage", &nvml.power},
        {"nvmlDeviceGetEnforcedPowerLimit", &nvml.power_limit},
        {"nvmlDeviceGetTemperature", &nvml.temperature},
        {"nvmlDeviceGetCurrentClocksThrottleReasons", &nvml.reasons},
    };
    char sentence[640];
    void *handle = tsri_cuda_library_open(&library, sentence, sizeof sentence);
    for (unsigned i = 0; handle != NULL && i < sizeof functions / sizeof *functions; i++) {
        void *symbol = tsri_system.find_symbol(handle, functions[i].name);
        memcpy(functions[i].field, &symbol, sizeof symbol);
    }
    is_loaded = nvml.init != NULL && nvml.by_pci != NULL && nvml.init() == NVML_OK;
}

bool tsri_cuda_sensors_read(const char *pci_bus_id, struct tsri_cuda_sensors *sensors) {
    nvml_device device;
    unsigned value;
    *sensors = (struct tsri_cuda_sensors){(double)NAN, (double)NAN, (double)NAN,
                                          (double)NAN, (double)NAN, 0};
    pthread_once(&once, load);
    if (!is_loaded || nvml.by_pci(pci_bus_id, &device) != NVML_OK) return false;
    if (nvml.clock != NULL && nvml.clock(device, NVML_CLOCK_SM, &value) == NVML_OK)
        sensors->sm_clock_mhz = value;
    if (nvml.clock != NULL && nvml.clock(device, NVML_CLOCK_MEMORY, &value) == NVML_OK)
        sensors->memory_clock_mhz = value;
    if (nvml.power != NULL && nvml.power(device, &value) == NVML_OK)
        sensors->power_w = 1e-3 * value;
    if (nvml.power_limit != NULL && nvml.power_limit(device, &value) == NVML_OK)
        sensors->power_limit_w = 1e-3 * value;
    if (nvml.temperature != NULL &&
        nvml.temperature(device, NVML_TEMPERATURE_GPU, &value) == NVML_OK)
        sensors->temperature_c = value;
    if (nvml.reasons != NULL && nvml.reasons(device, &sensors->throttle_reasons) != NVML_OK)
        sensors->throttle_reasons = 0;
    return true;
}
