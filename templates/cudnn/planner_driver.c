/* planner_driver.c: stands for NVIDIA's driver where a bundle is built without one: cuDNN's part for engines that are
 * compiled at run time, of which plans are never made, needs its symbols to be loaded. */
#define PK_ABSENT(name) \
  int name(void);       \
  int name(void) { return 100; /* CUDA_ERROR_NO_DEVICE */ }

PK_ABSENT(cuGetErrorString)
PK_ABSENT(cuModuleGetFunction)
PK_ABSENT(cuModuleLoadData)
PK_ABSENT(cuModuleUnload)
PK_ABSENT(cuTensorMapEncodeIm2col)
PK_ABSENT(cuTensorMapEncodeTiled)
