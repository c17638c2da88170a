// Functions of the host on the runtime's own threads, side by side: as native kernels of a queue without order.
//
// Intel's CPU runtime lets its threads spin for milliseconds after a kernel, beside whoever has threads of his own.
// PoCL's sleep. benchmarks: unet_train 14.2 -> 13.3 ms, resnet_train 62.9 -> 60.3 (Zen 5).
#pragma once

#include <cstdint>

#include "../driver/lazy_driver.h"
#include "opencl_api.h"

namespace lazy::opencl {

// Null where the device runs no native kernels.
inline cl_command_queue task_queue(const Functions& cl, cl_context context, cl_device_id device) {
  cl_bitfield executes = 0;
  cl.clGetDeviceInfo(device, CL_DEVICE_EXECUTION_CAPABILITIES, sizeof(executes), &executes, nullptr);
  const cl_ulong unordered[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, 0};
  cl_int code;
  return executes & CL_EXEC_NATIVE_KERNEL ? cl.clCreateCommandQueueWithProperties(context, device, unordered, &code) : nullptr;
}

// task(items[i]) for each; all have ended, also those before one that is refused.
inline cl_int run_each(const Functions& cl, cl_command_queue queue, lazy_task task, void* const* items, uint32_t count) {
  struct Call {
    lazy_task task;
    void* item;
  };
  const auto run = [](void* copied) {
    const Call* call = static_cast<Call*>(copied);
    call->task(call->item);
  };
  cl_int code = CL_SUCCESS;
  for (uint32_t i = 0; i < count && code == CL_SUCCESS; ++i) {
    Call call{task, items[i]};
    code = cl.clEnqueueNativeKernel(queue, run, &call, sizeof(call), 0, nullptr, nullptr, 0, nullptr, nullptr);
  }
  const cl_int ended = cl.clFinish(queue);
  return code == CL_SUCCESS ? ended : code;
}

}  // namespace lazy::opencl
