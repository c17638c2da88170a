/* hostc: the host's processor as a chip, in plain C, against lazy_driver.h alone.
 *
 * A worked level 2 port. Kernels arrive as C source and are compiled by the host's cc;
 * each exports  void NAME(void **args, const uint64_t global[3], const uint64_t local[3])
 * which runs the whole grid; args[i] points at a buffer's address or at a scalar's bytes. Memory is the host's, so it is host visible, and a queue
 * may run each command at the call: that is allowed, and the simplest thing that works.
 */
/* [head] */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lazy_driver.h"

#define ALIGNMENT 64
#define MAX_ARGS 64
#define MAX_LOG 16384
/* [head] */

/* [errors] */
static _Thread_local char error_text[MAX_LOG + 256];

static lazy_status fail(lazy_status status, const char *format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(error_text, sizeof(error_text), format, values);
  va_end(values);
  return status;
}

static const char *last_error(void) { return error_text; }
/* [errors] */

/* [device] */
struct lazy_device_s {
  int unused; /* a real chip keeps its context here */
};

static lazy_status device_count(uint32_t *count) {
  *count = 1;
  return LAZY_OK;
}

static lazy_status open_device(uint32_t index, lazy_device *device) {
  if (index != 0) return fail(LAZY_INVALID_ARGUMENT, "hostc has one device, not %u", index + 1);
  *device = calloc(1, sizeof(**device));
  return *device ? LAZY_OK : fail(LAZY_OUT_OF_MEMORY, "no memory for a device");
}

static lazy_status close_device(lazy_device device) {
  free(device);
  return LAZY_OK;
}

static lazy_status properties(lazy_device device, lazy_properties *out) {
  (void)device;
  lazy_properties p = {0};
  p.struct_size = out->struct_size < sizeof(p) ? out->struct_size : sizeof(p);
  p.level = 2;
  snprintf(p.name, sizeof(p.name), "host processor through cc");
  snprintf(p.vendor, sizeof(p.vendor), "hostc");
  snprintf(p.driver_version, sizeof(p.driver_version), "1");
  snprintf(p.language, sizeof(p.language), "c");
  p.is_cpu = 1;
  p.compute_units = 1; /* a kernel runs on the thread that launches it */
  p.max_work_group_size = 256;
  p.vector_bytes = 32;
  p.local_memory_bytes = 1 << 18;
  p.global_memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGE_SIZE);
  p.mem_alignment = ALIGNMENT;
  p.max_kernel_args = MAX_ARGS;
  p.host_visible = 1;
  p.has_f64 = 1;
  p.launch_us = 0.2;
  memcpy(out, &p, p.struct_size);
  return LAZY_OK;
}
/* [device] */

/* [memory] */
struct lazy_mem_s {
  char *address;
  uint64_t bytes;
};

static lazy_status alloc_memory(lazy_device device, uint64_t bytes, lazy_mem *out) {
  (void)device;
  lazy_mem mem = malloc(sizeof(*mem));
  const uint64_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (mem && rounded >= bytes && (mem->address = aligned_alloc(ALIGNMENT, rounded ? rounded : ALIGNMENT))) {
    mem->bytes = bytes;
    *out = mem;
    return LAZY_OK;
  }
  free(mem);
  return fail(LAZY_OUT_OF_MEMORY, "no memory for %llu bytes", (unsigned long long)bytes);
}

static lazy_status free_memory(lazy_device device, lazy_mem mem) {
  (void)device;
  free(mem->address);
  free(mem);
  return LAZY_OK;
}

static lazy_status host_pointer(lazy_device device, lazy_mem mem, void **pointer) {
  (void)device;
  *pointer = mem->address;
  return LAZY_OK;
}

/* The address of `bytes` bytes at `offset`, or NULL with an error text. */
static char *range(lazy_mem mem, uint64_t offset, uint64_t bytes) {
  if (offset <= mem->bytes && bytes <= mem->bytes - offset) return mem->address + offset;
  fail(LAZY_INVALID_ARGUMENT, "bytes %llu to %llu of an allocation of %llu", (unsigned long long)offset,
       (unsigned long long)(offset + bytes), (unsigned long long)mem->bytes);
  return NULL;
}
/* [memory] */

/* [queue] */
struct lazy_queue_s {
  int unused;
};
struct lazy_event_s {
  uint64_t ns;
};

static lazy_status queue_create(lazy_device device, lazy_queue *queue) {
  (void)device;
  *queue = calloc(1, sizeof(**queue));
  return *queue ? LAZY_OK : fail(LAZY_OUT_OF_MEMORY, "no memory for a queue");
}

static lazy_status queue_destroy(lazy_device device, lazy_queue queue) {
  (void)device;
  free(queue);
  return LAZY_OK;
}

static lazy_status copy_h2d(lazy_device device, lazy_queue queue, lazy_mem dst, uint64_t dst_offset, const void *src,
                            uint64_t bytes, int blocking) {
  (void)device, (void)queue, (void)blocking;
  char *to = range(dst, dst_offset, bytes);
  if (!to) return LAZY_INVALID_ARGUMENT;
  if (bytes) memcpy(to, src, bytes);
  return LAZY_OK;
}

static lazy_status copy_d2h(lazy_device device, lazy_queue queue, void *dst, lazy_mem src, uint64_t src_offset,
                            uint64_t bytes, int blocking) {
  (void)device, (void)queue, (void)blocking;
  const char *from = range(src, src_offset, bytes);
  if (!from) return LAZY_INVALID_ARGUMENT;
  if (bytes) memcpy(dst, from, bytes);
  return LAZY_OK;
}

static lazy_status copy_d2d(lazy_device device, lazy_queue queue, lazy_mem dst, uint64_t dst_offset, lazy_mem src,
                            uint64_t src_offset, uint64_t bytes) {
  (void)device, (void)queue;
  char *to = range(dst, dst_offset, bytes);
  const char *from = range(src, src_offset, bytes);
  if (!to || !from) return LAZY_INVALID_ARGUMENT;
  if (bytes) memcpy(to, from, bytes);
  return LAZY_OK;
}

static lazy_status event_record(lazy_device device, lazy_queue queue, lazy_event *event) {
  (void)device, (void)queue;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (!(*event = malloc(sizeof(**event)))) return fail(LAZY_OUT_OF_MEMORY, "no memory for an event");
  (*event)->ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
  return LAZY_OK;
}

static lazy_status event_done(lazy_device device, lazy_event event) { /* a command has run when its call returns */
  (void)device, (void)event;
  return LAZY_OK;
}

static lazy_status event_time_ns(lazy_device device, lazy_event event, uint64_t *ns) {
  (void)device;
  *ns = event->ns;
  return LAZY_OK;
}

static lazy_status event_destroy(lazy_device device, lazy_event event) {
  (void)device;
  free(event);
  return LAZY_OK;
}

static lazy_status synchronize(lazy_device device, lazy_queue queue) {
  (void)device, (void)queue;
  return LAZY_OK;
}
/* [queue] */

/* [program] */
struct lazy_program_s {
  void *library;
  char *binary;
  uint64_t bytes;
};

static int write_file(const char *path, const char *text, uint64_t bytes) {
  FILE *file = fopen(path, "wb");
  if (!file) return 0;
  const int written = fwrite(text, 1, bytes, file) == bytes;
  return (fclose(file) == 0) && written;
}

static char *read_file(const char *path, uint64_t *bytes) {
  FILE *file = fopen(path, "rb");
  if (!file) return NULL;
  fseek(file, 0, SEEK_END);
  char *text = malloc((size_t)ftell(file));
  *bytes = (uint64_t)ftell(file);
  rewind(file);
  if (text) *bytes = fread(text, 1, *bytes, file);
  fclose(file);
  return text;
}

/* Compiles the C file beside `library` (same name, .c) into it; the compiler's words go to the error text. */
static lazy_status compile(const char *library, const char *source, uint64_t bytes) {
  char path[80], log_path[80], command[512];
  snprintf(path, sizeof(path), "%s.c", library);
  snprintf(log_path, sizeof(log_path), "%s.log", library);
  snprintf(command, sizeof(command),
           "cc -std=gnu11 -O3 -march=native -ffp-contract=off -fno-math-errno -shared -fPIC %s -o %s -lm >%s 2>&1", path,
           library, log_path);
  const int built = write_file(path, source, bytes) && system(command) == 0;
  uint64_t length = 0;
  char *log = built ? NULL : read_file(log_path, &length);
  unlink(path);
  unlink(log_path);
  const lazy_status status = built ? LAZY_OK : fail(LAZY_BUILD_FAILED, "cc refused the program:\n%.*s", (int)length, log ? log : "");
  free(log);
  return status;
}

static lazy_status program_destroy(lazy_device device, lazy_program program) {
  (void)device;
  if (program->library) dlclose(program->library);
  free(program->binary);
  free(program);
  return LAZY_OK;
}

static lazy_status program_load(lazy_device device, const char *source, uint64_t bytes, int is_binary,
                                const char *options, lazy_program *out) {
  (void)device, (void)options;
  /* A name that nobody else has: dlopen takes a known name for the library that it has loaded already. */
  char path[] = "/tmp/hostc-XXXXXX.so";
  const int file = mkstemps(path, 3);
  if (file >= 0) close(file);
  lazy_program program = calloc(1, sizeof(*program));
  lazy_status status = program ? LAZY_OK : fail(LAZY_OUT_OF_MEMORY, "no memory for a program");
  if (status == LAZY_OK && !is_binary) status = compile(path, source, bytes);
  else if (status == LAZY_OK && !write_file(path, source, bytes)) status = fail(LAZY_BUILD_FAILED, "cannot write %s", path);
  if (status == LAZY_OK && !(program->library = dlopen(path, RTLD_NOW | RTLD_LOCAL)))
    status = fail(LAZY_BUILD_FAILED, "%s", dlerror());
  if (status == LAZY_OK && !(program->binary = read_file(path, &program->bytes)))
    status = fail(LAZY_BUILD_FAILED, "cannot read %s", path);
  unlink(path); /* what is loaded stays mapped, and a process that ends leaves nothing behind */
  if (status == LAZY_OK) *out = program;
  else if (program) program_destroy(device, program);
  return status;
}

static lazy_status program_binary(lazy_device device, lazy_program program, void *out, uint64_t *bytes) {
  (void)device;
  if (out && *bytes < program->bytes)
    return fail(LAZY_INVALID_ARGUMENT, "program_binary: %llu bytes needed", (unsigned long long)program->bytes);
  if (out) memcpy(out, program->binary, program->bytes);
  *bytes = program->bytes;
  return LAZY_OK;
}
/* [program] */

/* [launch] */
struct lazy_kernel_s {
  void (*run)(void **args, const uint64_t global[3], const uint64_t local[3]);
};

static lazy_status kernel_create(lazy_device device, lazy_program program, const char *name, lazy_kernel *kernel) {
  (void)device;
  void *symbol = dlsym(program->library, name);
  if (!symbol) return fail(LAZY_INVALID_ARGUMENT, "the program has no kernel %s", name);
  if (!(*kernel = malloc(sizeof(**kernel)))) return fail(LAZY_OUT_OF_MEMORY, "no memory for a kernel");
  memcpy(&(*kernel)->run, &symbol, sizeof(symbol));
  return LAZY_OK;
}

static lazy_status kernel_destroy(lazy_device device, lazy_kernel kernel) {
  (void)device;
  free(kernel);
  return LAZY_OK;
}

static lazy_status launch(lazy_device device, lazy_queue queue, lazy_kernel kernel, const uint64_t global[3],
                          const uint64_t local[3], uint32_t nargs, const lazy_arg *args) {
  static const uint64_t one[3] = {1, 1, 1};
  (void)device, (void)queue;
  void *values[MAX_ARGS], *addresses[MAX_ARGS]; /* a value is the place of an address or of a scalar's bytes */
  uint64_t local_bytes = 0, used = 0;
  if (nargs > MAX_ARGS) return fail(LAZY_INVALID_ARGUMENT, "%u arguments; the limit is %u", nargs, MAX_ARGS);
  if (!local[0]) local = one;
  for (int d = 0; d < 3; ++d)
    if (!local[d] || global[d] % local[d]) return fail(LAZY_LAUNCH_FAILED, "global size is no multiple of local size");
  if (local[0] * local[1] * local[2] > 256) return fail(LAZY_LAUNCH_FAILED, "more than 256 work-items in a group");
  for (uint32_t i = 0; i < nargs; ++i)
    if (args[i].kind == LAZY_ARG_LOCAL) local_bytes += (args[i].size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  char *scratch = local_bytes ? aligned_alloc(ALIGNMENT, local_bytes) : NULL;
  if (local_bytes && !scratch) return fail(LAZY_OUT_OF_MEMORY, "no work-group memory");
  for (uint32_t i = 0; i < nargs; ++i) {
    if (args[i].kind == LAZY_ARG_BYTES) {
      values[i] = (void *)&args[i].bits;
    } else if (args[i].kind == LAZY_ARG_LOCAL) {
      addresses[i] = scratch + used;
      values[i] = &addresses[i];
      used += (args[i].size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    } else {
      values[i] = &addresses[i];
      if ((addresses[i] = range(args[i].mem, args[i].offset, 0))) continue;
      free(scratch);
      return LAZY_INVALID_ARGUMENT;
    }
  }
  kernel->run(values, global, local);
  free(scratch);
  return LAZY_OK;
}
/* [launch] */

/* [table] */
static const lazy_driver_api api = {
    .struct_size = sizeof(lazy_driver_api), .major = LAZY_DRIVER_MAJOR, .minor = LAZY_DRIVER_MINOR, .name = "hostc",
    .device_count = device_count, .open = open_device, .close = close_device, .properties = properties,
    .last_error = last_error, .alloc = alloc_memory, .free = free_memory, .host_pointer = host_pointer,
    .queue_create = queue_create, .queue_destroy = queue_destroy, .copy_h2d = copy_h2d, .copy_d2h = copy_d2h,
    .copy_d2d = copy_d2d, .event_record = event_record, .event_query = event_done, .event_wait = event_done,
    .event_time_ns = event_time_ns, .event_destroy = event_destroy, .synchronize = synchronize,
    .program_load = program_load, .program_binary = program_binary, .program_destroy = program_destroy,
    .kernel_create = kernel_create, .kernel_destroy = kernel_destroy, .launch = launch,
};

const lazy_driver_api *lazy_driver_get(uint32_t host_major, uint32_t host_minor) {
  (void)host_minor; /* an older host does not look past the entries that it knows */
  return host_major == LAZY_DRIVER_MAJOR ? &api : NULL;
}
/* [table] */
