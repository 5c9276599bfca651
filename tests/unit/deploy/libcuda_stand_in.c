/* A stand-in for NVIDIA's driver library, for tests of how a machine is described: a driver for CUDA 12.8 with the
 * devices of DEVICES. It runs nothing. */
#include <stddef.h>
#include <stdio.h>

static const struct {
  const char *name;
  int major, minor;
  size_t memory;
} devices[] = {DEVICES};
enum { COUNT = sizeof devices / sizeof *devices };

int cuDriverGetVersion(int *version) {
  *version = VERSION;
  return 0;
}

int cuInit(unsigned flags) { return flags ? 1 : INIT; }

int cuDeviceGetCount(int *count) {
  *count = COUNT;
  return 0;
}

int cuDeviceGet(int *device, int index) {
  *device = 100 + index;
  return index < COUNT ? 0 : 101;
}

int cuDeviceGetName(char *name, int size, int device) {
  return snprintf(name, (size_t)size, "%s", devices[device - 100].name) < 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? devices[device - 100].major : attribute == 76 ? devices[device - 100].minor : -1;
  return 0;
}

#ifndef OLD
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  *bytes = devices[device - 100].memory;
  return 0;
}
#endif
