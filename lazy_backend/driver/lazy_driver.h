/* The driver contract: what a chip implements to run PyTorch through lazy-backend.
 *
 * Plain C, no torch, no Python. A driver is a shared library that exports one
 * function, `lazy_driver_get`, returning a table of versioned function pointers.
 * Rules:
 *  - Every function returns a lazy_status; LAZY_OK is 0. After a failure,
 *    last_error() returns a text that a user can act on (NUL-terminated, owned
 *    by the driver, valid until the next call on the same thread).
 *  - The struct only ever grows at its end within a major version. The host reads
 *    `struct_size` and treats missing entries as NULL; optional entries may be NULL.
 *  - Commands on one queue run in order. Calls that name a queue may return before
 *    the command has run; memory named by them stays valid until it has.
 *  - The host never calls two functions of one device at the same time, with four exceptions
 *    that must be safe from any thread: event_query, event_wait, last_error, run_tasks.
 *  - Sizes and offsets are in bytes.
 */
#ifndef LAZY_DRIVER_H
#define LAZY_DRIVER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LAZY_DRIVER_MAJOR 1u /* a change that breaks built drivers */
#define LAZY_DRIVER_MINOR 1u /* entries added at the end */

typedef int32_t lazy_status;
enum {
  LAZY_OK = 0,
  LAZY_OUT_OF_MEMORY = 1,
  LAZY_BUILD_FAILED = 2,
  LAZY_LAUNCH_FAILED = 3,
  LAZY_DEVICE_LOST = 4,
  LAZY_INVALID_ARGUMENT = 5,
  LAZY_TIMEOUT = 6,
  LAZY_UNSUPPORTED = 7,
  LAZY_MEMORY_FAULT = 8,
  LAZY_NOT_READY = 9
};

typedef struct lazy_device_s *lazy_device;
typedef struct lazy_queue_s *lazy_queue;
typedef struct lazy_event_s *lazy_event;
typedef struct lazy_program_s *lazy_program;
typedef struct lazy_kernel_s *lazy_kernel;
typedef struct lazy_mem_s *lazy_mem; /* one allocation; never an address for the host to touch,
                                        unless host_pointer() gives one */

/* Element types, as they cross the contract. bool is one byte, 0 or 1. */
typedef enum {
  LAZY_BOOL = 0, LAZY_U8, LAZY_I8, LAZY_I16, LAZY_I32, LAZY_I64,
  LAZY_F16, LAZY_BF16, LAZY_F32, LAZY_F64, LAZY_U16, LAZY_U32, LAZY_U64
} lazy_dtype;

/* What the chip is. Zero means "unknown" or "none"; the host fills defaults and
 * refuses contradictions (see lazy_backend/driver/capabilities.py). */
typedef struct {
  uint32_t struct_size;         /* set by the host: a driver writes no byte past it */
  uint32_t level;               /* 1: core ops, 2: compiles kernels, 3: tuned */
  char name[128];
  char vendor[64];
  char driver_version[64];
  char language[16];            /* "opencl", "c", "cuda"; empty at level 1 */
  uint32_t is_cpu;              /* 1: cores with vector units and a cache, 0: GPU-like */
  uint32_t compute_units;
  uint32_t max_work_group_size;
  uint32_t max_local_size[3];
  uint32_t subgroup_size;       /* 0: none usable */
  uint32_t vector_bytes;        /* native vector register width, bytes */
  uint64_t local_memory_bytes;  /* per work-group */
  uint64_t global_memory_bytes;
  uint64_t max_alloc_bytes;
  uint64_t cache_bytes;         /* last-level, per compute unit where private */
  uint32_t mem_alignment;       /* of allocations and of buffer arguments' offsets */
  uint32_t max_kernel_args;
  uint32_t max_arg_bytes;
  uint32_t max_private_bytes;   /* per work-item, before spilling hurts */
  uint32_t host_visible;        /* 1: host_pointer() works, and host access needs no copy */
  uint32_t has_f16, has_bf16, has_f64, has_i64_atomics, has_f32_atomics;
  double launch_us;             /* cost of one queued launch */
  double bandwidth_gbs;         /* GB/s, global memory */
  double peak_gflops_f32;
  uint32_t address_args;        /* 1: generated kernels take LAZY_ARG_ADDRESS in place of LAZY_ARG_BUFFER */
} lazy_properties;

/* ADDRESS: as BUFFER, to a kernel that has a number of 64 bits there, not a pointer. Only with address_args, and then the
   host has no BUFFER that begins at an offset: a driver may refuse it. */
typedef enum { LAZY_ARG_BUFFER = 0, LAZY_ARG_BYTES = 1, LAZY_ARG_LOCAL = 2, LAZY_ARG_ADDRESS = 3 } lazy_arg_kind;
typedef struct {
  uint32_t kind;   /* lazy_arg_kind */
  uint32_t size;   /* BYTES: 1, 2, 4 or 8; LOCAL: bytes of work-group memory */
  lazy_mem mem;    /* BUFFER, ADDRESS */
  uint64_t offset; /* BUFFER, ADDRESS: bytes, a multiple of mem_alignment */
  uint64_t bits;   /* BYTES: the value, little endian */
} lazy_arg;

/* A strided view of an allocation (level 1 core ops). Strides in elements, >= 0 . */
#define LAZY_MAX_RANK 16
typedef struct {
  lazy_mem mem;
  uint64_t offset; /* bytes */
  uint32_t dtype;  /* lazy_dtype */
  uint32_t rank;
  int64_t sizes[LAZY_MAX_RANK];
  int64_t strides[LAZY_MAX_RANK];
} lazy_tensor;

typedef void (*lazy_task)(void *item); /* a function of the host */

typedef struct lazy_driver_api {
  uint32_t struct_size;
  uint32_t major, minor;
  const char *name;

  /* devices */
  lazy_status (*device_count)(uint32_t *count);
  lazy_status (*open)(uint32_t index, lazy_device *device);
  lazy_status (*close)(lazy_device device);
  lazy_status (*properties)(lazy_device device, lazy_properties *out);
  const char *(*last_error)(void);

  /* memory */
  lazy_status (*alloc)(lazy_device device, uint64_t bytes, lazy_mem *mem);
  lazy_status (*free)(lazy_device device, lazy_mem mem);
  /* Optional, with properties.host_visible: the address of the allocation for the host.
   * The host touches it only while no queued command does. */
  lazy_status (*host_pointer)(lazy_device device, lazy_mem mem, void **pointer);

  /* queues, copies, events */
  lazy_status (*queue_create)(lazy_device device, lazy_queue *queue);
  lazy_status (*queue_destroy)(lazy_device device, lazy_queue queue);
  /* blocking != 0: host memory may be reused (h2d) or read (d2h) on return. */
  lazy_status (*copy_h2d)(lazy_device device, lazy_queue queue, lazy_mem dst, uint64_t dst_offset,
                          const void *src, uint64_t bytes, int blocking);
  lazy_status (*copy_d2h)(lazy_device device, lazy_queue queue, void *dst, lazy_mem src,
                          uint64_t src_offset, uint64_t bytes, int blocking);
  lazy_status (*copy_d2d)(lazy_device device, lazy_queue queue, lazy_mem dst, uint64_t dst_offset,
                          lazy_mem src, uint64_t src_offset, uint64_t bytes);
  lazy_status (*event_record)(lazy_device device, lazy_queue queue, lazy_event *event);
  lazy_status (*event_query)(lazy_device device, lazy_event event); /* LAZY_OK or LAZY_NOT_READY */
  lazy_status (*event_wait)(lazy_device device, lazy_event event);
  lazy_status (*event_time_ns)(lazy_device device, lazy_event event, uint64_t *ns); /* of completion, device clock */
  lazy_status (*event_destroy)(lazy_device device, lazy_event event);
  lazy_status (*flush)(lazy_device device, lazy_queue queue);       /* start what is queued */
  lazy_status (*synchronize)(lazy_device device, lazy_queue queue); /* wait for all of it */

  /* programs and launches (levels 2 and 3; NULL at level 1) */
  lazy_status (*program_load)(lazy_device device, const char *source, uint64_t bytes, int is_binary,
                              const char *options, lazy_program *program);
  lazy_status (*program_binary)(lazy_device device, lazy_program program, void *out, uint64_t *bytes); /* out NULL: size; optional */
  lazy_status (*program_destroy)(lazy_device device, lazy_program program);
  lazy_status (*kernel_create)(lazy_device device, lazy_program program, const char *name, lazy_kernel *kernel);
  lazy_status (*kernel_destroy)(lazy_device device, lazy_kernel kernel);
  /* Sizes count work-items; global is a multiple of local. local all zero: the driver chooses. */
  lazy_status (*launch)(lazy_device device, lazy_queue queue, lazy_kernel kernel, const uint64_t global[3],
                        const uint64_t local[3], uint32_t nargs, const lazy_arg *args);

  /* core ops (level 1; NULL where kernels are compiled) and extern library entries (level 3).
   * `name`: a core op of ops_core's table. `tensors`: outputs first, then inputs.
   * `attrs`: the op's static attributes as JSON, and where it is known "line", the user's Python line, for messages.
   * LAZY_UNSUPPORTED: not offered.
   * A level 3 driver is asked with n_tensors 0 which entries it has: LAZY_OK for those. What an entry takes
   * dense it takes with any strides: operands are views, and only the race that chooses it is run on dense ones. */
  lazy_status (*core_op)(lazy_device device, lazy_queue queue, const char *name, uint32_t n_outputs,
                         uint32_t n_tensors, const lazy_tensor *tensors, const char *attrs);

  /* Optional (since 1.1), for a CPU whose threads spin between kernels: task(items[i]) for each i < count, side by side on
   * the threads that run kernels. Returns when all have ended; nothing is queued meanwhile. Tasks throw nothing.
   * Without it the host's library has threads of its own, which share the cores with those that spin.
   * LAZY_UNSUPPORTED: not for this device. */
  lazy_status (*run_tasks)(lazy_device device, lazy_queue queue, lazy_task task, void *const *items, uint32_t count);
} lazy_driver_api;

/* The only symbol that a driver exports. NULL if `host_major` is not served. */
typedef const lazy_driver_api *(*lazy_driver_get_fn)(uint32_t host_major, uint32_t host_minor);
__attribute__((visibility("default")))
const lazy_driver_api *lazy_driver_get(uint32_t host_major, uint32_t host_minor);

#ifdef __cplusplus
}
#endif
#endif
