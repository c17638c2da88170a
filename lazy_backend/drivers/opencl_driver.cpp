// The OpenCL driver: lazy_driver.h over the ICD loader, for one device type of one platform.
//
// Memory is fine-grained shared virtual memory where the device has it (the CPU drivers do: a device pointer is a host
// pointer), with NVIDIA's driver buffers of which kernels are given addresses, else coarse-grained shared virtual memory
// (the host only has the address), else buffers, with sub-buffers for offsets.
// Python chooses the devices (drivers/opencl.py) and hands them over in lazy_opencl_configure.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../driver/lazy_driver.h"
#include "opencl_addresses.h"
#include "opencl_api.h"
#include "opencl_as_gpu.h"
#include "opencl_pages.h"
#include "opencl_tasks.h"
#include "opencl_timing.h"

using namespace lazy::opencl;

struct lazy_device_s {
  cl_device_id id;
  cl_context context;
  bool svm;
  bool fine;  // the host may touch it
  bool by_number;  // kernels may be given addresses as numbers
  std::unique_ptr<Addresses> addresses;  // tells those of buffers
  bool is_cpu;
  std::string build_options;
  std::string brief;  // more options, with which programs build sooner or not at all
  HugePages pages{};  // of a CPU's memory
};
struct lazy_queue_s {
  cl_command_queue queue;
  cl_command_queue here = nullptr;  // runs kernels on the thread that launches them, while `queue` is idle
  cl_command_queue tasks = nullptr;  // runs the host's functions side by side, while `queue` is idle
  bool idle = true;                 // whether nothing can be under way in `queue`
};
struct lazy_mem_s {
  char* pointer;                        // shared virtual memory, or null
  cl_mem buffer;                        // else this
  uint64_t address;                     // as kernels see it, or 0
  uint64_t bytes;
  std::map<uint64_t, cl_mem> sub_buffers;  // by offset
};
struct lazy_event_s {
  cl_event event;
};
struct lazy_program_s {
  cl_program program;
};
struct lazy_kernel_s {
  cl_kernel kernel;
  Timing timing{};
};

namespace {

constexpr uint64_t kSvmAlignment = 64;  // a cache line, and the widest vector

Functions cl;
std::vector<cl_device_id> chosen;
enum Memory { kBest, kCoarse, kAddresses, kBuffers };  // what LAZY_OPENCL_MEMORY asks for
int wanted_memory = kBest;
bool as_gpu = false;  // what LAZY_OPENCL_AS=gpu asks for
thread_local std::string error_text;

struct Status {
  cl_int code;
  lazy_status status;
};
constexpr Status kStatuses[] = {
    {CL_DEVICE_NOT_AVAILABLE, LAZY_DEVICE_LOST},
    {CL_COMPILER_NOT_AVAILABLE, LAZY_UNSUPPORTED},
    {CL_MEM_OBJECT_ALLOCATION_FAILURE, LAZY_OUT_OF_MEMORY},
    {CL_OUT_OF_RESOURCES, LAZY_LAUNCH_FAILED},
    {CL_OUT_OF_HOST_MEMORY, LAZY_OUT_OF_MEMORY},
    {CL_BUILD_PROGRAM_FAILURE, LAZY_BUILD_FAILED},
    {CL_INVALID_BINARY, LAZY_BUILD_FAILED},
    {CL_INVALID_BUILD_OPTIONS, LAZY_BUILD_FAILED},
    {CL_INVALID_WORK_GROUP_SIZE, LAZY_LAUNCH_FAILED},
    {CL_INVALID_BUFFER_SIZE, LAZY_OUT_OF_MEMORY},
};

lazy_status fail(lazy_status status, const std::string& text) {
  error_text = text;
  return status;
}

lazy_status result(cl_int code, const char* what) {
  if (code == CL_SUCCESS) return LAZY_OK;
  const auto* known = std::find_if(std::begin(kStatuses), std::end(kStatuses), [&](auto& s) { return s.code == code; });
  const lazy_status other = code <= CL_FIRST_INVALID ? LAZY_INVALID_ARGUMENT : LAZY_LAUNCH_FAILED;
  return fail(known != std::end(kStatuses) ? known->status : other,
              std::string(what) + ": OpenCL error " + std::to_string(code));
}

template <class T>
T info(cl_device_id device, cl_uint key) {
  T value{};
  cl.clGetDeviceInfo(device, key, sizeof(value), &value, nullptr);  // unknown keys leave zero
  return value;
}

std::string text_info(cl_device_id device, cl_uint key) {
  size_t bytes = 0;
  if (cl.clGetDeviceInfo(device, key, 0, nullptr, &bytes) != CL_SUCCESS || bytes == 0) return "";
  std::string text(bytes, '\0');
  cl.clGetDeviceInfo(device, key, bytes, text.data(), nullptr);
  text.resize(std::strlen(text.c_str()));
  return text;
}

bool has_extension(cl_device_id device, const char* name) {
  return (" " + text_info(device, CL_DEVICE_EXTENSIONS) + " ").find(std::string(" ") + name + " ") != std::string::npos;
}

// The newest language that the device compiles, with eager's rounding of division and square root.
std::string build_options(cl_device_id device, bool is_cpu) {
  int major = 1, minor = 2;
  std::sscanf(text_info(device, CL_DEVICE_OPENCL_C_VERSION).c_str(), "OpenCL C %d.%d", &major, &minor);
  std::string options = "-cl-std=CL" + std::to_string(major) + "." + std::to_string(minor);
  if (info<cl_bitfield>(device, CL_DEVICE_SINGLE_FP_CONFIG) & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT) {
    options += " -cl-fp32-correctly-rounded-divide-sqrt";
  }
  if (is_cpu) options += " -DLAZY_ON_CPU";  // for generated kernels
  // What GLOBAL_ID works around is a CPU's compiler, whatever its device says of itself.
  if (info<cl_bitfield>(device, CL_DEVICE_TYPE) & CL_DEVICE_TYPE_CPU) options += " -DLAZY_HIDDEN_IDS";
  return options;
}

// Intel's CPU runtime puts 1,600 lines of subgroup functions before every program: 7 of the 20 ms that an empty one takes.
// This is the header's own guard, and the one macro of it that generated kernels ask for.
std::string brief_options(cl_device_id device, bool is_cpu) {
  constexpr const char* kUsed = "cl_intel_required_subgroup_size";
  return is_cpu && has_extension(device, kUsed) ? std::string(" -D_OPENCL_CTH_ -D") + kUsed + "=1" : "";
}

lazy_status device_count(uint32_t* count) {
  *count = static_cast<uint32_t>(chosen.size());
  return LAZY_OK;
}

lazy_status open_device(uint32_t index, lazy_device* out) {
  if (index >= chosen.size()) return fail(LAZY_INVALID_ARGUMENT, "no such OpenCL device");
  cl_device_id id = chosen[index];
  cl_int code;
  const cl_context context = cl.clCreateContext(nullptr, 1, &id, nullptr, nullptr, &code);
  if (code != CL_SUCCESS) return result(code, "clCreateContext");
  const auto grains =
      cl.clSVMAlloc && cl.clSetKernelArgSVMPointer ? info<cl_bitfield>(id, CL_DEVICE_SVM_CAPABILITIES) : 0;
  const bool fine = wanted_memory == kBest && (grains & CL_DEVICE_SVM_FINE_GRAIN_BUFFER);
  const bool tells = wanted_memory == kBest && !fine && has_extension(id, "cl_nv_device_attribute_query");
  std::unique_ptr<Addresses> addresses;
  if (tells || wanted_memory == kAddresses) addresses = std::make_unique<Addresses>(cl, context, id);
  if (addresses && !*addresses) addresses = nullptr;
  const bool svm = fine || (wanted_memory <= kCoarse && !addresses && (grains & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER));
  const bool by_number = addresses || (fine && (grains & CL_DEVICE_SVM_FINE_GRAIN_SYSTEM));
  const bool is_cpu = !as_gpu && (info<cl_bitfield>(id, CL_DEVICE_TYPE) & CL_DEVICE_TYPE_CPU);
  *out = new lazy_device_s{id, context, svm, fine, by_number, std::move(addresses), is_cpu,
                           build_options(id, is_cpu), brief_options(id, is_cpu)};
  return LAZY_OK;
}

lazy_status close_device(lazy_device device) {
  const cl_context context = device->context;
  delete device;
  return result(cl.clReleaseContext(context), "clReleaseContext");
}

template <size_t N>
void put(char (&field)[N], const std::string& text) {
  std::snprintf(field, N, "%s", text.c_str());
}

uint32_t vector_bytes(lazy_device device) {
  const uint32_t reported = std::max(4u, info<cl_uint>(device->id, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT) * 4);
  // PoCL 3 crashes while it compiles kernels with 512-bit vectors.
  const bool is_pocl = text_info(device->id, CL_DEVICE_VERSION).find("PoCL") != std::string::npos;
  return is_pocl ? std::min(reported, 32u) : reported;
}

uint32_t subgroup_size(cl_device_id id) {
  if (has_extension(id, "cl_nv_device_attribute_query")) return info<cl_uint>(id, CL_DEVICE_WARP_SIZE_NV);
  if (has_extension(id, "cl_amd_device_attribute_query")) return info<cl_uint>(id, CL_DEVICE_WAVEFRONT_WIDTH_AMD);
  return 0;
}

lazy_status properties(lazy_device device, lazy_properties* out) {
  const cl_device_id id = device->id;
  lazy_properties p{};
  p.struct_size = std::min<uint32_t>(out->struct_size, sizeof(p));
  p.level = 3;
  put(p.name, text_info(id, CL_DEVICE_NAME));
  put(p.vendor, text_info(id, CL_DEVICE_VENDOR));
  put(p.driver_version, text_info(id, CL_DRIVER_VERSION));
  put(p.language, "opencl");
  p.is_cpu = device->is_cpu;
  p.compute_units = info<cl_uint>(id, CL_DEVICE_MAX_COMPUTE_UNITS);
  p.max_work_group_size = static_cast<uint32_t>(info<size_t>(id, CL_DEVICE_MAX_WORK_GROUP_SIZE));
  struct Sizes {
    size_t of[3];
  };
  const auto sizes = info<Sizes>(id, CL_DEVICE_MAX_WORK_ITEM_SIZES);
  std::copy(sizes.of, sizes.of + 3, p.max_local_size);
  p.subgroup_size = subgroup_size(id);
  p.vector_bytes = vector_bytes(device);
  p.local_memory_bytes = info<cl_ulong>(id, CL_DEVICE_LOCAL_MEM_SIZE);
  p.global_memory_bytes = info<cl_ulong>(id, CL_DEVICE_GLOBAL_MEM_SIZE);
  p.max_alloc_bytes = info<cl_ulong>(id, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
  const long private_cache = device->is_cpu ? sysconf(_SC_LEVEL2_CACHE_SIZE) : 0;
  p.cache_bytes = private_cache > 0 ? static_cast<uint64_t>(private_cache)
                                    : info<cl_ulong>(id, CL_DEVICE_GLOBAL_MEM_CACHE_SIZE);
  p.mem_alignment = device->svm ? kSvmAlignment : std::max(1u, info<cl_uint>(id, CL_DEVICE_MEM_BASE_ADDR_ALIGN) / 8);
  p.max_arg_bytes = static_cast<uint32_t>(info<size_t>(id, CL_DEVICE_MAX_PARAMETER_SIZE));
  p.max_kernel_args = p.max_arg_bytes / 8;
  // What the registers hold: 32 vector registers of AVX-512, 16 of AVX2, 255 words of a GPU's lane.
  p.max_private_bytes = device->is_cpu ? (p.vector_bytes >= 64 ? 32 : 16) * p.vector_bytes : 255 * 4;
  p.host_visible = device->fine;
  p.has_f16 = has_extension(id, "cl_khr_fp16");
  p.has_f64 = info<cl_bitfield>(id, CL_DEVICE_DOUBLE_FP_CONFIG) != 0;
  p.has_i64_atomics = has_extension(id, "cl_khr_int64_base_atomics");
  p.has_f32_atomics = has_extension(id, "cl_ext_float_atomics");
  p.launch_us = device->is_cpu ? 3 : 5;
  // One fused multiply-add a lane and cycle; a GPU's compute unit has 128 lanes.
  const double lanes = device->is_cpu ? p.vector_bytes / 4.0 : 128;
  p.peak_gflops_f32 = p.compute_units * lanes * 2 * info<cl_uint>(id, CL_DEVICE_MAX_CLOCK_FREQUENCY) / 1000;
  p.address_args = device->by_number;
  if (as_gpu) say_as_a_gpu(&p);
  std::memcpy(out, &p, p.struct_size);
  return LAZY_OK;
}

lazy_status alloc(lazy_device device, uint64_t bytes, lazy_mem* out) {
  if (device->svm) {
    const cl_bitfield flags = CL_MEM_READ_WRITE | (device->fine ? CL_MEM_SVM_FINE_GRAIN_BUFFER : 0);
    void* pointer = cl.clSVMAlloc(device->context, flags, bytes, 0);
    if (!pointer) return fail(LAZY_OUT_OF_MEMORY, "clSVMAlloc of " + std::to_string(bytes) + " bytes");
    *out = new lazy_mem_s{static_cast<char*>(pointer), nullptr, reinterpret_cast<uint64_t>(pointer), bytes, {}};
    if (device->is_cpu) device->pages.ask((*out)->pointer, bytes);
    return LAZY_OK;
  }
  cl_int code;
  const cl_mem buffer = cl.clCreateBuffer(device->context, CL_MEM_READ_WRITE, bytes, nullptr, &code);
  if (code != CL_SUCCESS) return result(code, "clCreateBuffer");
  cl_ulong address = 0;
  if (device->addresses) code = device->addresses->of(buffer, &address);
  if (code != CL_SUCCESS) {
    cl.clReleaseMemObject(buffer);
    return fail(LAZY_OUT_OF_MEMORY, "a buffer of " + std::to_string(bytes) + " bytes: OpenCL error " + std::to_string(code));
  }
  *out = new lazy_mem_s{nullptr, buffer, address, bytes, {}};
  return LAZY_OK;
}

lazy_status free_mem(lazy_device device, lazy_mem mem) {
  device->pages.forget(mem->pointer);
  if (mem->pointer) cl.clSVMFree(device->context, mem->pointer);
  for (const auto& entry : mem->sub_buffers) cl.clReleaseMemObject(entry.second);
  const lazy_status status = mem->buffer ? result(cl.clReleaseMemObject(mem->buffer), "clReleaseMemObject") : LAZY_OK;
  delete mem;
  return status;
}

lazy_status host_pointer(lazy_device device, lazy_mem mem, void** pointer) {
  *pointer = device->fine ? mem->pointer : nullptr;
  return *pointer ? LAZY_OK : fail(LAZY_UNSUPPORTED, "this device's memory is not host visible");
}

lazy_status queue_create(lazy_device device, lazy_queue* out) {
  const cl_ulong properties[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE, 0};
  cl_int code;
  const cl_command_queue queue =
      cl.clCreateCommandQueueWithProperties(device->context, device->id, properties, &code);
  if (code != CL_SUCCESS) return result(code, "clCreateCommandQueueWithProperties");
  *out = new lazy_queue_s{queue};
  if (device->is_cpu && device->fine && has_extension(device->id, "cl_intel_exec_by_local_thread")) {
    const cl_ulong local[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_THREAD_LOCAL_EXEC_ENABLE_INTEL, 0};
    (*out)->here = cl.clCreateCommandQueueWithProperties(device->context, device->id, local, &code);
    (*out)->tasks = task_queue(cl, device->context, device->id);
  }
  return LAZY_OK;
}

lazy_status queue_destroy(lazy_device, lazy_queue queue) {
  if (queue->here) cl.clReleaseCommandQueue(queue->here);
  if (queue->tasks) cl.clReleaseCommandQueue(queue->tasks);
  const lazy_status status = result(cl.clReleaseCommandQueue(queue->queue), "clReleaseCommandQueue");
  delete queue;
  return status;
}

bool outside(lazy_mem mem, uint64_t offset, uint64_t bytes) { return offset > mem->bytes || bytes > mem->bytes - offset; }

lazy_status out_of_range(const char* what, lazy_mem mem, uint64_t offset, uint64_t bytes) {
  return fail(LAZY_INVALID_ARGUMENT, std::string(what) + ": bytes " + std::to_string(offset) + " to " +
                                         std::to_string(offset + bytes) + " of an allocation of " +
                                         std::to_string(mem->bytes));
}

lazy_status copy_h2d(lazy_device, lazy_queue q, lazy_mem dst, uint64_t offset, const void* src, uint64_t bytes,
                     int blocking) {
  if (outside(dst, offset, bytes)) return out_of_range("copy_h2d", dst, offset, bytes);
  if (bytes == 0) return LAZY_OK;
  q->idle = blocking && dst->pointer;  // what a buffer is given may be on its way when the host has its memory back
  return result(dst->pointer ? cl.clEnqueueSVMMemcpy(q->queue, blocking, dst->pointer + offset, src, bytes, 0, nullptr,
                                                     nullptr)
                             : cl.clEnqueueWriteBuffer(q->queue, dst->buffer, blocking, offset, bytes, src, 0, nullptr,
                                                       nullptr),
                "copy_h2d");
}

lazy_status copy_d2h(lazy_device, lazy_queue q, void* dst, lazy_mem src, uint64_t offset, uint64_t bytes,
                     int blocking) {
  if (outside(src, offset, bytes)) return out_of_range("copy_d2h", src, offset, bytes);
  if (bytes == 0) return LAZY_OK;
  q->idle = blocking;
  return result(src->pointer ? cl.clEnqueueSVMMemcpy(q->queue, blocking, dst, src->pointer + offset, bytes, 0, nullptr,
                                                     nullptr)
                             : cl.clEnqueueReadBuffer(q->queue, src->buffer, blocking, offset, bytes, dst, 0, nullptr,
                                                      nullptr),
                "copy_d2h");
}

lazy_status copy_d2d(lazy_device, lazy_queue q, lazy_mem dst, uint64_t dst_offset, lazy_mem src, uint64_t src_offset,
                     uint64_t bytes) {
  if (outside(dst, dst_offset, bytes)) return out_of_range("copy_d2d", dst, dst_offset, bytes);
  if (outside(src, src_offset, bytes)) return out_of_range("copy_d2d", src, src_offset, bytes);
  if (bytes == 0) return LAZY_OK;
  q->idle = false;
  return result(dst->pointer ? cl.clEnqueueSVMMemcpy(q->queue, 0, dst->pointer + dst_offset, src->pointer + src_offset,
                                                     bytes, 0, nullptr, nullptr)
                             : cl.clEnqueueCopyBuffer(q->queue, src->buffer, dst->buffer, src_offset, dst_offset, bytes,
                                                      0, nullptr, nullptr),
                "copy_d2d");
}

lazy_status event_record(lazy_device, lazy_queue q, lazy_event* out) {
  cl_event event = nullptr;
  q->idle = false;
  const lazy_status status =
      result(cl.clEnqueueMarkerWithWaitList(q->queue, 0, nullptr, &event), "clEnqueueMarkerWithWaitList");
  if (status == LAZY_OK) *out = new lazy_event_s{event};
  return status;
}

lazy_status event_query(lazy_device, lazy_event event) {
  cl_int state = 0;
  const cl_int code =
      cl.clGetEventInfo(event->event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(state), &state, nullptr);
  if (code != CL_SUCCESS) return result(code, "clGetEventInfo");
  if (state < 0) return result(state, "a command before this event");
  return state == CL_COMPLETE ? LAZY_OK : LAZY_NOT_READY;
}

lazy_status event_wait(lazy_device, lazy_event event) {
  return result(cl.clWaitForEvents(1, &event->event), "clWaitForEvents");
}

lazy_status event_time_ns(lazy_device, lazy_event event, uint64_t* ns) {
  return result(cl.clGetEventProfilingInfo(event->event, CL_PROFILING_COMMAND_END, sizeof(*ns), ns, nullptr),
                "clGetEventProfilingInfo");
}

lazy_status event_destroy(lazy_device, lazy_event event) {
  const lazy_status status = result(cl.clReleaseEvent(event->event), "clReleaseEvent");
  delete event;
  return status;
}

lazy_status flush(lazy_device, lazy_queue q) {
  return q->idle ? LAZY_OK : result(cl.clFlush(q->queue), "clFlush");
}

lazy_status synchronize(lazy_device device, lazy_queue q) {
  device->pages.ask_again();
  if (q->idle) return LAZY_OK;
  const cl_int code = cl.clFinish(q->queue);
  q->idle = code == CL_SUCCESS;
  return result(code, "clFinish");
}

std::string build_log(lazy_device device, cl_program program) {
  size_t bytes = 0;
  cl.clGetProgramBuildInfo(program, device->id, CL_PROGRAM_BUILD_LOG, 0, nullptr, &bytes);
  std::string log(bytes, '\0');
  cl.clGetProgramBuildInfo(program, device->id, CL_PROGRAM_BUILD_LOG, bytes, log.data(), nullptr);
  log.resize(std::strlen(log.c_str()));
  return log;
}

lazy_status program_load(lazy_device device, const char* source, uint64_t bytes, int is_binary, const char* options,
                         lazy_program* out) {
  const size_t length = bytes;
  const auto* binary = reinterpret_cast<const unsigned char*>(source);
  cl_int code;
  const cl_program program =
      is_binary ? cl.clCreateProgramWithBinary(device->context, 1, &device->id, &length, &binary, nullptr, &code)
                : cl.clCreateProgramWithSource(device->context, 1, &source, &length, &code);
  if (code != CL_SUCCESS) return fail(LAZY_BUILD_FAILED, "the program was refused: OpenCL error " + std::to_string(code));
  const std::string all = device->build_options + " " + options;
  code = CL_BUILD_PROGRAM_FAILURE;
  if (!is_binary && !device->brief.empty()) {
    code = cl.clBuildProgram(program, 1, &device->id, (all + device->brief).c_str(), nullptr, nullptr);
  }
  if (code != CL_SUCCESS) {  // a user's own kernel may need that header
    code = cl.clBuildProgram(program, 1, &device->id, all.c_str(), nullptr, nullptr);
  }
  if (code != CL_SUCCESS) {
    const std::string log = build_log(device, program);
    cl.clReleaseProgram(program);
    return fail(LAZY_BUILD_FAILED,
                "OpenCL error " + std::to_string(code) + " building with \"" + all + "\"; the compiler says:\n" + log);
  }
  *out = new lazy_program_s{program};
  return LAZY_OK;
}

lazy_status program_binary(lazy_device, lazy_program program, void* out, uint64_t* bytes) {
  size_t size = 0;
  if (const cl_int code = cl.clGetProgramInfo(program->program, CL_PROGRAM_BINARY_SIZES, sizeof(size), &size, nullptr)) {
    return result(code, "CL_PROGRAM_BINARY_SIZES");
  }
  if (out && *bytes < size) return fail(LAZY_INVALID_ARGUMENT, "program_binary: the buffer is too small");
  *bytes = size;
  if (!out) return LAZY_OK;
  return result(cl.clGetProgramInfo(program->program, CL_PROGRAM_BINARIES, sizeof(out), &out, nullptr),
                "CL_PROGRAM_BINARIES");
}

lazy_status program_destroy(lazy_device, lazy_program program) {
  const lazy_status status = result(cl.clReleaseProgram(program->program), "clReleaseProgram");
  delete program;
  return status;
}

lazy_status kernel_create(lazy_device, lazy_program program, const char* name, lazy_kernel* out) {
  cl_int code;
  const cl_kernel kernel = cl.clCreateKernel(program->program, name, &code);
  if (code != CL_SUCCESS) return result(code, name);
  *out = new lazy_kernel_s{.kernel = kernel};
  return LAZY_OK;
}

lazy_status kernel_destroy(lazy_device, lazy_kernel kernel) {
  kernel->timing.forget(cl);
  const lazy_status status = result(cl.clReleaseKernel(kernel->kernel), "clReleaseKernel");
  delete kernel;
  return status;
}

// The buffer that begins at `offset`: sub-buffers are made once and live as long as the allocation.
cl_int buffer_at(lazy_mem mem, uint64_t offset, cl_mem* out) {
  *out = mem->buffer;
  if (offset == 0) return CL_SUCCESS;
  cl_mem& sub = mem->sub_buffers[offset];
  cl_int code = CL_SUCCESS;
  if (!sub) {
    const cl_buffer_region region = {offset, mem->bytes - offset};
    sub = cl.clCreateSubBuffer(mem->buffer, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &region, &code);
  }
  *out = sub;
  return code;
}

cl_int set_arg(cl_kernel kernel, cl_uint index, const lazy_arg& arg) {
  switch (arg.kind) {
    case LAZY_ARG_BUFFER: {
      if (arg.mem->pointer) return cl.clSetKernelArgSVMPointer(kernel, index, arg.mem->pointer + arg.offset);
      cl_mem buffer;
      const cl_int code = buffer_at(arg.mem, arg.offset, &buffer);
      return code == CL_SUCCESS ? cl.clSetKernelArg(kernel, index, sizeof(buffer), &buffer) : code;
    }
    case LAZY_ARG_ADDRESS: {
      const uint64_t address = arg.mem->address + arg.offset;
      return cl.clSetKernelArg(kernel, index, sizeof(address), &address);
    }
    case LAZY_ARG_BYTES:
      return cl.clSetKernelArg(kernel, index, arg.size, &arg.bits);
    default:
      return cl.clSetKernelArg(kernel, index, arg.size, nullptr);
  }
}

lazy_status launch(lazy_device, lazy_queue q, lazy_kernel kernel, const uint64_t global[3], const uint64_t local[3],
                   uint32_t nargs, const lazy_arg* args) {
  for (uint32_t i = 0; i < nargs; ++i) {
    // NVIDIA's driver (580.159.04) dies when a buffer is freed that has had sub-buffers.
    if (args[i].kind == LAZY_ARG_BUFFER && args[i].mem->buffer && args[i].mem->address && args[i].offset) {
      return fail(LAZY_INVALID_ARGUMENT, "kernel argument " + std::to_string(i) +
                                             ": with address_args, memory from an offset on is a LAZY_ARG_ADDRESS");
    }
    if (const cl_int code = set_arg(kernel->kernel, i, args[i])) {
      return result(code, ("kernel argument " + std::to_string(i)).c_str());
    }
  }
  const size_t global_size[3] = {global[0], global[1], global[2]};
  const size_t local_size[3] = {local[0], local[1], local[2]};
  const cl_uint rank = global[2] > 1 ? 3 : global[1] > 1 ? 2 : 1;
  const auto enqueue = [&](cl_command_queue queue, cl_event* event) {
    return cl.clEnqueueNDRangeKernel(queue, kernel->kernel, rank, nullptr, global_size, local[0] ? local_size : nullptr,
                                     0, nullptr, event);
  };
  const uint64_t items = global[0] * global[1] * global[2];
  cl_int code;
  if (q->here && q->idle && kernel->timing.is_short(cl, items)) {
    const auto start = std::chrono::steady_clock::now();
    code = enqueue(q->here, nullptr);
    if (code == CL_SUCCESS) code = cl.clFinish(q->here);
    kernel->timing.took(std::chrono::steady_clock::now() - start);
  } else {
    q->idle = false;
    code = enqueue(q->queue, q->here ? kernel->timing.probe(items) : nullptr);
  }
  return result(code, "clEnqueueNDRangeKernel");
}

lazy_status run_tasks(lazy_device, lazy_queue q, lazy_task task, void* const* items, uint32_t count) {
  if (!q->tasks) return fail(LAZY_UNSUPPORTED, "this device runs no functions of the host");
  return result(run_each(cl, q->tasks, task, items, count), "clEnqueueNativeKernel");
}

const char* last_error() { return error_text.c_str(); }

constexpr lazy_driver_api make_api() {
  lazy_driver_api api{};
  api.struct_size = sizeof(api);
  api.major = LAZY_DRIVER_MAJOR;
  api.minor = LAZY_DRIVER_MINOR;
  api.name = "opencl";
  api.device_count = device_count;
  api.open = open_device;
  api.close = close_device;
  api.properties = properties;
  api.last_error = last_error;
  api.alloc = alloc;
  api.free = free_mem;
  api.host_pointer = host_pointer;
  api.queue_create = queue_create;
  api.queue_destroy = queue_destroy;
  api.copy_h2d = copy_h2d;
  api.copy_d2h = copy_d2h;
  api.copy_d2d = copy_d2d;
  api.event_record = event_record;
  api.event_query = event_query;
  api.event_wait = event_wait;
  api.event_time_ns = event_time_ns;
  api.event_destroy = event_destroy;
  api.flush = flush;
  api.synchronize = synchronize;
  api.program_load = program_load;
  api.program_binary = program_binary;
  api.program_destroy = program_destroy;
  api.kernel_create = kernel_create;
  api.kernel_destroy = kernel_destroy;
  api.launch = launch;
  api.run_tasks = run_tasks;
  return api;
}
constexpr lazy_driver_api kApi = make_api();

}  // namespace

// Called once before the first device is opened: the ICD loader's path, the devices to offer
// (cl_device_id), which memory is asked for, and whether a device is to say what a GPU would.
extern "C" __attribute__((visibility("default"))) int lazy_opencl_configure(const char* loader, uint32_t count,
                                                                           void* const* devices, int memory, int gpu) {
  void* library = dlopen(loader, RTLD_NOW | RTLD_LOCAL);
  if (!library) return fail(LAZY_UNSUPPORTED, dlerror());
#define X(name, result, parameters) cl.name = reinterpret_cast<result(*) parameters>(dlsym(library, #name));
  LAZY_OPENCL_FUNCTIONS(X)
#undef X
  if (!cl.clCreateCommandQueueWithProperties) {
    return fail(LAZY_UNSUPPORTED, std::string(loader) + " is older than OpenCL 2.0");
  }
  chosen.clear();
  for (uint32_t i = 0; i < count; ++i) chosen.push_back(static_cast<cl_device_id>(devices[i]));
  wanted_memory = memory;
  as_gpu = gpu != 0;
  return LAZY_OK;
}

const lazy_driver_api* lazy_driver_get(uint32_t host_major, uint32_t) {
  return host_major == LAZY_DRIVER_MAJOR ? &kApi : nullptr;
}
