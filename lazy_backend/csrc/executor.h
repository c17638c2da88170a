// The executor of a device: runs jobs in order, off the GIL, on its own thread or on the
// thread of whoever has to wait for them.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "checks.h"
#include "credit.h"
#include "driver.h"
#include "window.h"

namespace lazy {

struct ArgRecipe {
  enum Kind : uint8_t { kSlot, kTemp, kBytes, kScalar, kLocal } kind;
  enum Type : uint8_t { kF64, kF32, kI64, kI32, kBool } type;  // of a scalar
  uint32_t index;  // slot, piece of memory for intermediates, or scalar
  uint32_t size;   // bytes of BYTES or LOCAL
  uint64_t bits;   // value of BYTES, offset of TEMP in its piece
  bool address;    // of SLOT or TEMP: the kernel takes a number, not a pointer
};

struct Step {
  enum Kind : uint8_t { kLaunch, kHost, kCoreOp } kind;
  lazy_kernel kernel = nullptr;
  std::array<uint64_t, 3> global{}, local{};
  std::vector<ArgRecipe> args;
  uint32_t node = 0;      // HOST: the window's node to run through the CPU
  bool fallback = false;  // HOST: for want of a lowering; else a window too rare to compile
  std::string name, attrs;  // CORE_OP
  uint32_t outputs = 0;
  std::vector<lazy_tensor> tensors;  // CORE_OP: mem and offset filled in from args
  uint32_t number = 0;                      // by which profiles know it; 0 where none is made
  std::vector<uint32_t> last, last_pieces;  // slots and pieces that no later step of the plan touches
};

struct Plan;

// A plan for all sizes of a structure, as Python's tracer found it (python_plan.cpp).
struct Sized {
  virtual ~Sized() = default;
  virtual std::shared_ptr<Plan> plan_for(const Window& window) const = 0;  // nullptr where it is not one of its windows
};

struct Plan {
  std::vector<Step> steps;
  std::vector<Check> checks;          // the words of the slot behind the window's last
  std::vector<int64_t> scalar_kinds;  // ScalarKind of each run-time scalar of the window
  std::vector<uint64_t> pieces;       // of memory for intermediates: bytes of each
  uint64_t runs = 0;
  uint64_t paid = 0;                  // of the executor's credit
  uint64_t handed_over_ns = UINT64_MAX;  // how long the driver took it, when it ran last
  bool once = false;  // holds a run-time scalar's value: good for this window only
  std::vector<uint32_t> varying;  // nodes, run on the host, whose sizes may be others than when the plan was made
  uint32_t runs_each = 0;         // how often it may run for the same sizes, where some nodes vary
  std::shared_ptr<const Sized> sized;  // that gives the plans of other sizes, where it is new
  bool built_kernels = false;  // making it took a kernel that neither memory nor the persistent cache had

  void find_last_uses(const Window& window);
  bool is_short() const;       // nothing but launches, which the driver took quickly
};

// The plan of a structure whose sizes are seldom the same twice, by the sizes of the nodes that do not vary.
struct Generic {
  std::vector<uint32_t> varying;
  uint32_t runs_each = 0;
  std::unordered_map<Hash, std::shared_ptr<Plan>, HashHash> plans;
};

struct Job {
  std::unique_ptr<Window> window;  // a window to run,
  std::function<void(Device&)> action;  // or something else, in order
  std::vector<uint8_t> alive;      // per slot of the window
  Hash key;

  Hash structure() const;          // the window's, and which slots are alive
};

class Executor {
 public:
  explicit Executor(int device);
  ~Executor();

  uint64_t submit(Job job);        // the job's ticket; never waits. It runs when someone waits for it, or after
  void start();                    // this: here where that is short, else on the thread
  void each_unplanned(size_t most, const std::function<void(const Job&)>& see);  // of the queue, in order; from within the compiler
  void prepare(Job& job);          // makes its plan
  void throttle();                 // waits (without the GIL) while the queue is full
  void wait(uint64_t ticket);      // until it has been handed to the driver; runs jobs itself
  void finish(uint64_t ticket);    // wait, and until the device has done it
  bool submitted_to_driver(uint64_t ticket);
  bool idle();                     // nothing queued and nothing running on the device
  void raise_pending();            // the first error of jobs since the last call
  uint64_t last_ticket();
  void forget_plans();             // also from within the compiler
  void stop();                     // drops what is queued, and ends the thread after what it runs

 private:
  void loop();
  bool run_next();                 // false where nothing is queued
  bool run_if_short();             // the one window that is queued, whose plan is known; false where it is none such
  void run(Job& job);
  void run_window(Job& job);
  void execute(const Plan& plan, Window& window);
  void run_plan(Plan& plan, Window& window);
  std::shared_ptr<Plan> plan_for(Job& job);
  std::shared_ptr<Plan> known_plan(Job& job);  // nullptr where there is none
  std::shared_ptr<Plan> new_plan(Job& job);
  void keep_plan(const Job& job, const std::shared_ptr<Plan>& plan, std::chrono::steady_clock::time_point start);
  uint32_t runs_of_generic(const Job& job) const;
  std::shared_ptr<Plan> sized_plan(const Hash& structure, const Window& window);  // nullptr where none is for such sizes
  void note_error(std::exception_ptr error);  // the first since it was raised last
  void look_at_checks();           // the device has done all

  const int index_;
  std::mutex queue_mutex_;
  std::recursive_mutex run_mutex_;  // the compiler, which a run calls, may forget plans
  std::condition_variable work_, space_;
  std::deque<Job> queue_;
  uint64_t submitted_ = 0, done_ = 0;
  std::atomic<uint64_t> finished_ = 0;  // jobs that the device has done
  bool stopping_ = false, device_busy_ = false;
  std::exception_ptr error_;
  Checks checks_;                  // guarded by run_mutex_
  std::unordered_map<Hash, std::shared_ptr<Plan>, HashHash> plans_;
  std::unordered_map<Hash, Generic, HashHash> generic_;         // by structure
  std::unordered_map<Hash, std::vector<std::shared_ptr<const Sized>>, HashHash> sized_;  // by structure, the latest first
  std::unordered_map<Hash, uint32_t, HashHash> generic_runs_;   // of a generic plan, by window
  Credit credit_;
  std::thread thread_;
};

Executor& executor(int device);

// At the program's end: a thread that came for the interpreter's lock later would be ended inside C++, which aborts. What
// nobody waited for is dropped, as on any device.
void stop_executors();


// Python's compiler: window, liveness, runs of a generic plan so far -> plan. Called with the GIL free.
using Compiler = std::function<std::unique_ptr<Plan>(const Window&, const std::vector<uint8_t>& alive, uint32_t generic_runs)>;
void set_compiler(Compiler compiler);

// Releases the GIL for as long as it lives, where the thread holds it.
class GilRelease {
 public:
  GilRelease() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~GilRelease() {
    if (state_) PyEval_RestoreThread(state_);
  }
  GilRelease(const GilRelease&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace lazy
