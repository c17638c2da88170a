// The part of the OpenCL C API that the driver calls, declared here because a fresh machine
// has the loader (libOpenCL.so.1 comes with several PyPI wheels) but not its headers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lazy::opencl {

using cl_int = int32_t;
using cl_uint = uint32_t;
using cl_bool = uint32_t;
using cl_ulong = uint64_t;
using cl_bitfield = uint64_t;
using cl_device_id = struct cl_device_id_s*;
using cl_platform_id = struct cl_platform_id_s*;
using cl_context = struct cl_context_s*;
using cl_command_queue = struct cl_command_queue_s*;
using cl_mem = struct cl_mem_s*;
using cl_program = struct cl_program_s*;
using cl_kernel = struct cl_kernel_s*;
using cl_event = struct cl_event_s*;

constexpr cl_int CL_SUCCESS = 0;
constexpr cl_int CL_DEVICE_NOT_AVAILABLE = -2;
constexpr cl_int CL_COMPILER_NOT_AVAILABLE = -3;
constexpr cl_int CL_MEM_OBJECT_ALLOCATION_FAILURE = -4;
constexpr cl_int CL_OUT_OF_RESOURCES = -5;
constexpr cl_int CL_OUT_OF_HOST_MEMORY = -6;
constexpr cl_int CL_BUILD_PROGRAM_FAILURE = -11;
constexpr cl_int CL_FIRST_INVALID = -30;  // CL_INVALID_VALUE; the invalid-argument codes lie below
constexpr cl_int CL_INVALID_BINARY = -42;
constexpr cl_int CL_INVALID_BUILD_OPTIONS = -43;
constexpr cl_int CL_INVALID_WORK_GROUP_SIZE = -54;
constexpr cl_int CL_INVALID_BUFFER_SIZE = -61;

constexpr cl_bitfield CL_DEVICE_TYPE_CPU = 1 << 1;
constexpr cl_uint CL_DEVICE_TYPE = 0x1000;
constexpr cl_uint CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002;
constexpr cl_uint CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004;
constexpr cl_uint CL_DEVICE_MAX_WORK_ITEM_SIZES = 0x1005;
constexpr cl_uint CL_DEVICE_MAX_CLOCK_FREQUENCY = 0x100C;
constexpr cl_uint CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010;
constexpr cl_uint CL_DEVICE_MAX_PARAMETER_SIZE = 0x1017;
constexpr cl_uint CL_DEVICE_MEM_BASE_ADDR_ALIGN = 0x1019;  // bits
constexpr cl_uint CL_DEVICE_SINGLE_FP_CONFIG = 0x101B;
constexpr cl_bitfield CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT = 1 << 7;
constexpr cl_uint CL_DEVICE_GLOBAL_MEM_CACHE_SIZE = 0x101E;
constexpr cl_uint CL_DEVICE_GLOBAL_MEM_SIZE = 0x101F;
constexpr cl_uint CL_DEVICE_LOCAL_MEM_SIZE = 0x1023;
constexpr cl_uint CL_DEVICE_EXECUTION_CAPABILITIES = 0x1029;
constexpr cl_bitfield CL_EXEC_NATIVE_KERNEL = 1 << 1;
constexpr cl_uint CL_DEVICE_NAME = 0x102B;
constexpr cl_uint CL_DEVICE_VENDOR = 0x102C;
constexpr cl_uint CL_DRIVER_VERSION = 0x102D;
constexpr cl_uint CL_DEVICE_VERSION = 0x102F;
constexpr cl_uint CL_DEVICE_EXTENSIONS = 0x1030;
constexpr cl_uint CL_DEVICE_DOUBLE_FP_CONFIG = 0x1032;
constexpr cl_uint CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT = 0x103A;
constexpr cl_uint CL_DEVICE_OPENCL_C_VERSION = 0x103D;
constexpr cl_uint CL_DEVICE_SVM_CAPABILITIES = 0x1053;
constexpr cl_bitfield CL_DEVICE_SVM_COARSE_GRAIN_BUFFER = 1 << 0;
constexpr cl_bitfield CL_DEVICE_SVM_FINE_GRAIN_SYSTEM = 1 << 2;
constexpr cl_bitfield CL_DEVICE_SVM_FINE_GRAIN_BUFFER = 1 << 1;
constexpr cl_uint CL_DEVICE_WARP_SIZE_NV = 0x4003;
constexpr cl_uint CL_DEVICE_WAVEFRONT_WIDTH_AMD = 0x4043;

constexpr cl_bitfield CL_MEM_READ_WRITE = 1 << 0;
constexpr cl_bitfield CL_MEM_SVM_FINE_GRAIN_BUFFER = 1 << 10;
constexpr cl_uint CL_BUFFER_CREATE_TYPE_REGION = 0x1220;
struct cl_buffer_region { size_t origin, size; };

constexpr cl_ulong CL_QUEUE_PROPERTIES = 0x1093;
constexpr cl_bitfield CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE = 1 << 0;
constexpr cl_bitfield CL_QUEUE_PROFILING_ENABLE = 1 << 1;
constexpr cl_bitfield CL_QUEUE_THREAD_LOCAL_EXEC_ENABLE_INTEL = 1u << 31;  // cl_intel_exec_by_local_thread
constexpr cl_uint CL_PROGRAM_BINARY_SIZES = 0x1165;
constexpr cl_uint CL_PROGRAM_BINARIES = 0x1166;
constexpr cl_uint CL_PROGRAM_BUILD_LOG = 0x1183;
constexpr cl_uint CL_EVENT_COMMAND_EXECUTION_STATUS = 0x11D3;
constexpr cl_int CL_COMPLETE = 0;
constexpr cl_uint CL_PROFILING_COMMAND_START = 0x1282;
constexpr cl_uint CL_PROFILING_COMMAND_END = 0x1283;

// name, result, parameters: one line a function, loaded by name from the ICD loader.
#define LAZY_OPENCL_FUNCTIONS(X)                                                                                      \
  X(clGetDeviceInfo, cl_int, (cl_device_id, cl_uint, size_t, void*, size_t*))                                         \
  X(clCreateContext, cl_context,                                                                                      \
    (const intptr_t*, cl_uint, const cl_device_id*, void (*)(const char*, const void*, size_t, void*), void*, cl_int*)) \
  X(clReleaseContext, cl_int, (cl_context))                                                                           \
  X(clCreateCommandQueueWithProperties, cl_command_queue, (cl_context, cl_device_id, const cl_ulong*, cl_int*))       \
  X(clReleaseCommandQueue, cl_int, (cl_command_queue))                                                                \
  X(clSVMAlloc, void*, (cl_context, cl_bitfield, size_t, cl_uint))                                                    \
  X(clSVMFree, void, (cl_context, void*))                                                                             \
  X(clCreateBuffer, cl_mem, (cl_context, cl_bitfield, size_t, void*, cl_int*))                                        \
  X(clCreateSubBuffer, cl_mem, (cl_mem, cl_bitfield, cl_uint, const void*, cl_int*))                                  \
  X(clReleaseMemObject, cl_int, (cl_mem))                                                                             \
  X(clEnqueueSVMMemcpy, cl_int,                                                                                       \
    (cl_command_queue, cl_bool, void*, const void*, size_t, cl_uint, const cl_event*, cl_event*))                     \
  X(clEnqueueWriteBuffer, cl_int,                                                                                     \
    (cl_command_queue, cl_mem, cl_bool, size_t, size_t, const void*, cl_uint, const cl_event*, cl_event*))            \
  X(clEnqueueReadBuffer, cl_int,                                                                                      \
    (cl_command_queue, cl_mem, cl_bool, size_t, size_t, void*, cl_uint, const cl_event*, cl_event*))                  \
  X(clEnqueueCopyBuffer, cl_int,                                                                                      \
    (cl_command_queue, cl_mem, cl_mem, size_t, size_t, size_t, cl_uint, const cl_event*, cl_event*))                  \
  X(clEnqueueMarkerWithWaitList, cl_int, (cl_command_queue, cl_uint, const cl_event*, cl_event*))                     \
  X(clGetEventInfo, cl_int, (cl_event, cl_uint, size_t, void*, size_t*))                                              \
  X(clGetEventProfilingInfo, cl_int, (cl_event, cl_uint, size_t, void*, size_t*))                                     \
  X(clWaitForEvents, cl_int, (cl_uint, const cl_event*))                                                              \
  X(clReleaseEvent, cl_int, (cl_event))                                                                               \
  X(clFlush, cl_int, (cl_command_queue))                                                                              \
  X(clFinish, cl_int, (cl_command_queue))                                                                             \
  X(clCreateProgramWithSource, cl_program, (cl_context, cl_uint, const char**, const size_t*, cl_int*))               \
  X(clCreateProgramWithBinary, cl_program,                                                                            \
    (cl_context, cl_uint, const cl_device_id*, const size_t*, const unsigned char**, cl_int*, cl_int*))               \
  X(clBuildProgram, cl_int,                                                                                           \
    (cl_program, cl_uint, const cl_device_id*, const char*, void (*)(cl_program, void*), void*))                      \
  X(clGetProgramInfo, cl_int, (cl_program, cl_uint, size_t, void*, size_t*))                                          \
  X(clGetProgramBuildInfo, cl_int, (cl_program, cl_device_id, cl_uint, size_t, void*, size_t*))                       \
  X(clReleaseProgram, cl_int, (cl_program))                                                                           \
  X(clCreateKernel, cl_kernel, (cl_program, const char*, cl_int*))                                                    \
  X(clReleaseKernel, cl_int, (cl_kernel))                                                                             \
  X(clSetKernelArg, cl_int, (cl_kernel, cl_uint, size_t, const void*))                                                \
  X(clSetKernelArgSVMPointer, cl_int, (cl_kernel, cl_uint, const void*))                                              \
  X(clEnqueueNDRangeKernel, cl_int,                                                                                   \
    (cl_command_queue, cl_kernel, cl_uint, const size_t*, const size_t*, const size_t*, cl_uint, const cl_event*,     \
     cl_event*))                                                                                                      \
  X(clEnqueueNativeKernel, cl_int,                                                                                    \
    (cl_command_queue, void (*)(void*), void*, size_t, cl_uint, const cl_mem*, const void**, cl_uint, const cl_event*, \
     cl_event*))

// Null where the loader is older than the function.
struct Functions {
#define X(name, result, parameters) result(*name) parameters = nullptr;
  LAZY_OPENCL_FUNCTIONS(X)
#undef X
};

}  // namespace lazy::opencl
