/* The driver of __NAME__, against lazy_driver.h alone. Each stub says what to write; lazy_driver.h says the rules.
 * `python -m lazy_backend port check __NAME__` says what works and what is next. */
/* [head] */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lazy_driver.h"
/* [head] */

/* [errors] */
static _Thread_local char error_text[1024];

static lazy_status fail(lazy_status status, const char *format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(error_text, sizeof(error_text), format, values);
  va_end(values);
  return status;
}

static const char *last_error(void) { return error_text; }
/* [errors] */

#define STUB(name, what, ...) \
  static lazy_status name(__VA_ARGS__) { return fail(LAZY_UNSUPPORTED, "write " #name ": " what); }

/* [device] */
struct lazy_device_s {
  int unused; /* your chip's context */
};

static lazy_status device_count(uint32_t *count) {
  *count = 1; /* ask your runtime */
  return LAZY_OK;
}

static lazy_status open_device(uint32_t index, lazy_device *device) {
  if (index != 0) return fail(LAZY_INVALID_ARGUMENT, "__NAME__ has one device, not %u", index + 1);
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
  p.level = __LEVEL__;
  snprintf(p.name, sizeof(p.name), "__NAME__");
  snprintf(p.language, sizeof(p.language), "c"); /* or "opencl", "cuda": what your compiler takes @2 */
  p.global_memory_bytes = 1ull << 30;            /* zeros are unknown: cautious defaults are taken */
  memcpy(out, &p, p.struct_size);
  return LAZY_OK;
}
/* [device] */

/* [memory] */
STUB(alloc_memory, "device memory of `bytes` bytes, aligned to mem_alignment", lazy_device d, uint64_t bytes, lazy_mem *mem)
STUB(free_memory, "give it back", lazy_device d, lazy_mem mem)
STUB(host_pointer, "its address for the host, where properties say host_visible", lazy_device d, lazy_mem mem, void **p)
/* [memory] */

/* [queue] */
STUB(queue_create, "an in-order queue", lazy_device d, lazy_queue *queue)
STUB(queue_destroy, "give it up", lazy_device d, lazy_queue queue)
STUB(copy_h2d, "copy from host memory", lazy_device d, lazy_queue q, lazy_mem dst, uint64_t dst_offset, const void *src,
     uint64_t bytes, int blocking)
STUB(copy_d2h, "copy to host memory", lazy_device d, lazy_queue q, void *dst, lazy_mem src, uint64_t src_offset,
     uint64_t bytes, int blocking)
STUB(copy_d2d, "copy inside the device", lazy_device d, lazy_queue q, lazy_mem dst, uint64_t dst_offset, lazy_mem src,
     uint64_t src_offset, uint64_t bytes)
STUB(event_record, "completes when all that is queued has run", lazy_device d, lazy_queue q, lazy_event *event)
STUB(event_done, "wait for it; as event_query: LAZY_NOT_READY while it has not completed", lazy_device d, lazy_event event)
STUB(event_time_ns, "the device's clock when it completed", lazy_device d, lazy_event event, uint64_t *ns)
STUB(event_destroy, "give it up", lazy_device d, lazy_event event)
STUB(synchronize, "return when all that is queued has run", lazy_device d, lazy_queue q)
/* [queue] */

/* [program] @2 */
STUB(program_load, "compile a program; LAZY_BUILD_FAILED with the compiler's words", lazy_device d, const char *source,/*@2*/
     uint64_t bytes, int is_binary, const char *options, lazy_program *program)/*@2*/
STUB(program_binary, "the built form, for the cache on disk", lazy_device d, lazy_program p, void *out, uint64_t *bytes)/*@2*/
STUB(program_destroy, "give it up", lazy_device d, lazy_program p)/*@2*/
/* [program] @2 */
/* [launch] @2 */
STUB(kernel_create, "the kernel of that name", lazy_device d, lazy_program p, const char *name, lazy_kernel *kernel)/*@2*/
STUB(kernel_destroy, "give it up", lazy_device d, lazy_kernel kernel)/*@2*/
STUB(launch, "queue the kernel on global[0..2] work-items in groups of local[0..2]", lazy_device d, lazy_queue q,/*@2*/
     lazy_kernel kernel, const uint64_t global[3], const uint64_t local[3], uint32_t nargs, const lazy_arg *args)/*@2*/
/* [launch] @2 */
/* [core_op] @1 */
STUB(core_op, "queue one core op of the table (docs/porting.md)", lazy_device d, lazy_queue q, const char *name,/*@1*/
     uint32_t n_outputs, uint32_t n_tensors, const lazy_tensor *tensors, const char *attrs)/*@1*/
/* [core_op] @1 */

/* [table] */
static const lazy_driver_api api = {
    .struct_size = sizeof(lazy_driver_api), .major = LAZY_DRIVER_MAJOR, .minor = LAZY_DRIVER_MINOR, .name = "__NAME__",
    .device_count = device_count, .open = open_device, .close = close_device, .properties = properties,
    .last_error = last_error, .alloc = alloc_memory, .free = free_memory, .host_pointer = host_pointer,
    .queue_create = queue_create, .queue_destroy = queue_destroy, .copy_h2d = copy_h2d, .copy_d2h = copy_d2h,
    .copy_d2d = copy_d2d, .event_record = event_record, .event_query = event_done, .event_wait = event_done,
    .event_time_ns = event_time_ns, .event_destroy = event_destroy, .synchronize = synchronize,
    .program_load = program_load, .program_binary = program_binary, .program_destroy = program_destroy,/*@2*/
    .kernel_create = kernel_create, .kernel_destroy = kernel_destroy, .launch = launch,/*@2*/
    .core_op = core_op,/*@1*/
};

const lazy_driver_api *lazy_driver_get(uint32_t host_major, uint32_t host_minor) {
  (void)host_minor; /* an older host does not look past the entries that it knows */
  return host_major == LAZY_DRIVER_MAJOR ? &api : NULL;
}
/* [table] */
