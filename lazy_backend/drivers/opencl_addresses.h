// Where buffers lie, as a kernel sees it: numbers that other kernels can be given in place of the buffers.
//
// OpenCL promises nothing of such numbers. NVIDIA's driver leaves a buffer where it was first used, and a launch costs 4 us
// with numbers, 9 with eight pointers to shared virtual memory, some 20 for each sub-buffer (H100, driver 580.159.04).
#pragma once

#include "opencl_api.h"

namespace lazy::opencl {

// Asks kernels of its own on a queue of its own. Null queue: this device's numbers cannot be used.
class Addresses {
 public:
  // Whether a buffer can be written at the number that is told for it is tried at once.
  Addresses(const Functions& functions, cl_context context, cl_device_id device) : cl(functions) {
    constexpr cl_ulong plain[] = {0};
    const char* text = kSource;
    cl_int code;
    program_ = cl.clCreateProgramWithSource(context, 1, &text, nullptr, &code);
    if (code != CL_SUCCESS || cl.clBuildProgram(program_, 1, &device, "", nullptr, nullptr) != CL_SUCCESS) return;
    tell_ = cl.clCreateKernel(program_, "tell", &code);
    mark_ = cl.clCreateKernel(program_, "mark", &code);
    answer_ = cl.clCreateBuffer(context, CL_MEM_READ_WRITE, sizeof(cl_ulong), nullptr, &code);
    queue_ = cl.clCreateCommandQueueWithProperties(context, device, plain, &code);
    if (tell_ && mark_ && answer_ && queue_ && !tried(context)) {
      cl.clReleaseCommandQueue(queue_);
      queue_ = nullptr;
    }
  }
  ~Addresses() {
    if (queue_) cl.clReleaseCommandQueue(queue_);
    if (answer_) cl.clReleaseMemObject(answer_);
    if (tell_) cl.clReleaseKernel(tell_);
    if (mark_) cl.clReleaseKernel(mark_);
    if (program_) cl.clReleaseProgram(program_);
  }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;

  explicit operator bool() const { return queue_ != nullptr; }

  // Where `buffer` lies. A driver that allocates at the first use does so now, and fails here where it cannot.
  cl_int of(cl_mem buffer, cl_ulong* address) const {
    cl_int code = cl.clSetKernelArg(tell_, 0, sizeof(buffer), &buffer);
    if (code == CL_SUCCESS) code = cl.clSetKernelArg(tell_, 1, sizeof(answer_), &answer_);
    if (code == CL_SUCCESS) code = run(tell_);
    if (code == CL_SUCCESS) {
      code = cl.clEnqueueReadBuffer(queue_, answer_, 1, 0, sizeof(*address), address, 0, nullptr, nullptr);
    }
    return code;
  }

 private:
  static constexpr const char* kSource =
      "__kernel void tell(__global char* buffer, __global ulong* address) { *address = (ulong)buffer; }\n"
      "__kernel void mark(ulong address) { *(__global uint*)address = 0x5eed; }\n";

  cl_int run(cl_kernel kernel) const {
    const size_t one = 1;
    return cl.clEnqueueNDRangeKernel(queue_, kernel, 1, nullptr, &one, &one, 0, nullptr, nullptr);
  }

  bool tried(cl_context context) const {
    cl_int code;
    const cl_mem buffer = cl.clCreateBuffer(context, CL_MEM_READ_WRITE, 2 * sizeof(cl_uint), nullptr, &code);
    if (code != CL_SUCCESS) return false;
    cl_ulong address = 0;
    cl_uint found = 0;
    const bool works = of(buffer, &address) == CL_SUCCESS && address != 0 && mark(address + sizeof(found)) &&
                       cl.clEnqueueReadBuffer(queue_, buffer, 1, sizeof(found), sizeof(found), &found, 0, nullptr,
                                              nullptr) == CL_SUCCESS;
    cl.clReleaseMemObject(buffer);
    return works && found == 0x5eed;
  }

  bool mark(cl_ulong address) const {
    return cl.clSetKernelArg(mark_, 0, sizeof(address), &address) == CL_SUCCESS && run(mark_) == CL_SUCCESS;
  }

  const Functions& cl;
  cl_program program_ = nullptr;
  cl_kernel tell_ = nullptr, mark_ = nullptr;
  cl_mem answer_ = nullptr;
  cl_command_queue queue_ = nullptr;
};

}  // namespace lazy::opencl
