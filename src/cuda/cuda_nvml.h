// SPDX-License-Identifier: Apache-2.0
// Our own declarations of NVML, which reads a GPU's sensors. The library does not depend on it: without NVML or one of
// its functions, the values are missing.
#ifndef TSRI_CUDA_NVML_H
#define TSRI_CUDA_NVML_H

#include <stdbool.h>

struct tsri_cuda_sensors {
    double sm_clock_mhz, memory_clock_mhz, power_w, power_limit_w, temperature_c; // NAN: unknown
    unsigned long long throttle_reasons; // bits of nvmlClocksEventReasons; 0: none or unknown
};

// Reads the sensors of the GPU at this PCI bus, "0000:17:00.0". False without NVML or for an unknown GPU.
bool tsri_cuda_sensors_read(const char *pci_bus_id, struct tsri_cuda_sensors *sensors);

#endif
