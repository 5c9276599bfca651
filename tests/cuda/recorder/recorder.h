/* recorder.h: what test programs ask of the recording stand-in for libcuda.so.1; see libcuda.c. */
#ifndef RECORDER_H_
#define RECORDER_H_

/* The log since the last call, one line for each thing that was done; valid until the next call. */
typedef const char *recorder_take_fn(void);
/* "" or the objects that live: "2 memory, 1 stream". Valid until the next call. */
typedef const char *recorder_live_fn(void);

/* How many streams are being captured. */
typedef int recorder_captures_fn(void);
/* "cuMemAlloc:2:2,cuLaunchKernel:1:719": from now on the 2nd call of cuMemAlloc gives 2, and so on. As in the
 * environment variable RECORDER_FAIL, which counts from the start. */
typedef void recorder_fail_fn(const char *faults);
/* Kernels of this name fault: whoever waits for them next gets 700, and so does every call after that. */
typedef void recorder_fault_fn(const char *kernel);
/* How many contexts this thread has pushed and not popped. */
typedef int recorder_depth_fn(void);
/* Device memory that the log calls m1, m2 and so on; NULL where there is none. */
typedef void *recorder_memory_fn(int number);

#endif /* RECORDER_H_ */
