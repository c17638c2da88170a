#include "executor.h"

#include <ATen/ThreadLocalState.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "hooks.h"
#include "host_library.h"
#include "host_step.h"
#include "op_by_op.h"
#include "profile.h"
#include "runtime.h"
#include "stats.h"

namespace lazy {
namespace {

// Windows that may wait for the device: enough to hide a compile of one, few enough to bound what they hold.
constexpr size_t kMaxQueued = 64;
// Plans kept per device. A plan of 500 nodes takes some 50 KB.
constexpr size_t kMaxPlans = 2048;
// A plan that was handed over in less time than this is handed over where it was recorded: waking a core of a virtual
// machine costs the waker 5 to 40 us. Launches take 3 to 6 us each, unless a driver runs kernels where they are launched.
// benchmarks: tiny_ops, 0.49 -> 0.37 ms (eager 0.39).
constexpr uint64_t kShortNs = 30'000;
// Windows whose runs of a generic plan are counted: decoding brings new ones for ever.
constexpr size_t kMaxCounted = 1 << 16;

Compiler& compiler() {
  static Compiler f;
  return f;
}

uint64_t scalar_bits(uint64_t bits, int64_t kind, ArgRecipe::Type type) {
  double as_double = 0;
  int64_t as_int = 0;
  if (kind == kF64 || kind == kC128) {
    std::memcpy(&as_double, &bits, 8);
    as_int = static_cast<int64_t>(as_double);
  } else {
    as_int = static_cast<int64_t>(bits);
    as_double = static_cast<double>(as_int);
  }
  uint64_t out = 0;
  switch (type) {
    case ArgRecipe::kF64: std::memcpy(&out, &as_double, 8); break;
    case ArgRecipe::kF32: {
      const float f = static_cast<float>(as_double);
      std::memcpy(&out, &f, 4);
      break;
    }
    case ArgRecipe::kI64: std::memcpy(&out, &as_int, 8); break;
    case ArgRecipe::kI32: {
      const auto v = static_cast<int32_t>(as_int);
      std::memcpy(&out, &v, 4);
      break;
    }
    case ArgRecipe::kBool: out = kind == kF64 ? as_double != 0 : as_int != 0; break;
  }
  return out;
}

// {"value": v}, as Python's json reads it.
std::string json_value(uint64_t bits, ArgRecipe::Type type) {
  std::string text;
  if (type == ArgRecipe::kBool) {
    text = bits ? "true" : "false";
  } else if (type == ArgRecipe::kI64 || type == ArgRecipe::kI32) {
    text = std::to_string(type == ArgRecipe::kI64 ? static_cast<int64_t>(bits) : static_cast<int32_t>(bits));
  } else {
    double v;
    std::memcpy(&v, &bits, 8);
    if (type == ArgRecipe::kF32) {
      float f;
      std::memcpy(&f, &bits, 4);
      v = f;
    }
    char buffer[64];
    std::snprintf(buffer, sizeof buffer, "%.17g", v);
    text = std::isnan(v) ? "NaN" : std::isinf(v) ? (v > 0 ? "Infinity" : "-Infinity") : buffer;
  }
  return "{\"value\": " + text + "}";
}

// What a script has set for its own ops (modes, autocast, its profiler) is not for torch's ops in jobs that its thread
// runs as it waits. A guard takes 0.75 us.
const at::ThreadLocalState& of_a_new_thread() {
  static const at::ThreadLocalState state = [] {
    std::optional<at::ThreadLocalState> found;
    std::thread([&] { found.emplace(); }).join();
    return *found;
  }();
  return state;
}

}  // namespace

bool Plan::is_short() const {
  if (handed_over_ns > kShortNs || !checks.empty()) return false;
  return std::all_of(steps.begin(), steps.end(), [](const Step& step) { return step.kind == Step::kLaunch; });
}

void Plan::find_last_uses(const Window& window) {
  std::vector<uint8_t> later(window.slots.size()), later_pieces(pieces.size());
  const auto touch = [](std::vector<uint8_t>& seen, uint32_t index, std::vector<uint32_t>& last) {
    if (!seen[index]) last.push_back(index);
    seen[index] = 1;
  };
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    for (const ArgRecipe& arg : step->args) {
      const bool slot = arg.kind == ArgRecipe::kSlot && arg.index < later.size();  // the last is the words of checks
      if (slot) touch(later, arg.index, step->last);
      if (arg.kind == ArgRecipe::kTemp) touch(later_pieces, arg.index, step->last_pieces);
    }
    if (step->kind == Step::kHost)
      for (const uint32_t slot : window.slots_of(step->node)) touch(later, slot, step->last);
  }
}

void set_compiler(Compiler f) { compiler() = std::move(f); }

Hash Job::structure() const {
  Hash structure = window->structure;
  for (const uint8_t is_alive : alive) structure.mix(is_alive);
  return structure;
}

Executor::Executor(int device) : index_(device), thread_([this] { loop(); }) {}
Executor::~Executor() { stop(); }

void Executor::stop() {
  std::deque<Job> dropped;  // their buffers go back without the lock
  {
    std::lock_guard<std::mutex> lock(queue_mutex_);
    if (stopping_) return;
    stopping_ = true;
    dropped.swap(queue_);
    done_ += dropped.size();
  }
  work_.notify_all();
  space_.notify_all();
  GilRelease free;
  if (thread_.joinable()) thread_.join();
}

uint64_t Executor::submit(Job job) {
  std::unique_lock<std::mutex> lock(queue_mutex_);
  const uint64_t ticket = ++submitted_;
  if (job.window)
    for (auto& slot : job.window->slots) slot->ticket = ticket;
  queue_.push_back(std::move(job));
  return ticket;
}

void Executor::start() {
  if (!run_if_short()) work_.notify_one();
}

bool Executor::run_if_short() {
  GilRelease free;
  std::unique_lock<std::recursive_mutex> running(run_mutex_, std::try_to_lock);
  if (!running.owns_lock()) return false;
  Hash key;
  {
    std::lock_guard<std::mutex> lock(queue_mutex_);
    if (queue_.size() != 1 || !queue_.front().window) return false;
    key = queue_.front().key;
  }
  const auto found = plans_.find(key);
  if (found == plans_.end() || !found->second->is_short()) return false;
  return run_next();
}

void Executor::prepare(Job& job) {
  GilRelease free;
  std::lock_guard<std::recursive_mutex> running(run_mutex_);
  plan_for(job);
}

void Executor::each_unplanned(size_t most, const std::function<void(const Job&)>& see) {
  const std::unique_lock<std::recursive_mutex> running(run_mutex_, std::try_to_lock);
  if (!running.owns_lock()) return;
  std::vector<const Job*> found;  // they stay where they are while nobody else takes from the queue
  {
    std::lock_guard<std::mutex> lock(queue_mutex_);
    for (const Job& job : queue_)
      if (job.window && found.size() < most && !plans_.contains(job.key) && credit_.pays(*job.window)) found.push_back(&job);
  }
  for (const Job* job : found) see(*job);
}

void Executor::throttle() {
  {
    std::lock_guard<std::mutex> lock(queue_mutex_);
    if (queue_.size() < kMaxQueued) return;
  }
  GilRelease free;
  std::unique_lock<std::mutex> lock(queue_mutex_);
  space_.wait(lock, [this] { return queue_.size() < kMaxQueued || stopping_; });
}

uint64_t Executor::last_ticket() {
  std::lock_guard<std::mutex> lock(queue_mutex_);
  return submitted_;
}

void Executor::forget_plans() {
  GilRelease free;
  std::lock_guard<std::recursive_mutex> running(run_mutex_);
  plans_.clear();
  generic_.clear();
  generic_runs_.clear();
  sized_.clear();
  credit_ = Credit();
}

void Executor::loop() {
  if (device(index_).props.is_cpu) spare_cores();
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(queue_mutex_);
      work_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (stopping_ && queue_.empty()) return;
    }
    run_next();
  }
}

bool Executor::run_next() {
  std::lock_guard<std::recursive_mutex> running(run_mutex_);
  Job job;
  {
    std::lock_guard<std::mutex> lock(queue_mutex_);
    if (queue_.empty()) return false;
    job = std::move(queue_.front());
    queue_.pop_front();
  }
  space_.notify_all();
  try {
    run(job);
  } catch (...) {
    note_error(std::current_exception());
  }
  job = Job();  // buffers go back before anyone is told
  std::lock_guard<std::mutex> lock(queue_mutex_);
  ++done_;
  return true;
}

void Executor::wait(uint64_t ticket) {
  GilRelease free;
  for (;;) {
    {
      std::lock_guard<std::mutex> lock(queue_mutex_);
      if (done_ >= ticket) return;
    }
    run_next();  // blocks while the thread runs one
  }
}

void Executor::finish(uint64_t ticket) {
  if (ticket <= finished_) return;
  GilRelease free;
  wait(ticket);
  std::lock_guard<std::recursive_mutex> running(run_mutex_);
  if (device_busy_) {
    device(index_).synchronize();
    device_busy_ = false;
    look_at_checks();
  }
  std::lock_guard<std::mutex> lock(queue_mutex_);
  finished_ = done_;
}

void Executor::note_error(std::exception_ptr error) {
  std::lock_guard<std::mutex> lock(queue_mutex_);
  if (!error_) error_ = std::move(error);
}

void Executor::look_at_checks() {
  if (auto error = checks_.look(device(index_))) note_error(std::move(error));
}

bool Executor::submitted_to_driver(uint64_t ticket) {
  std::lock_guard<std::mutex> lock(queue_mutex_);
  return done_ >= ticket;
}

bool Executor::idle() {
  std::unique_lock<std::recursive_mutex> running(run_mutex_, std::try_to_lock);
  if (!running.owns_lock()) return false;
  std::lock_guard<std::mutex> lock(queue_mutex_);
  return queue_.empty() && !device_busy_;
}

void Executor::raise_pending() {
  std::exception_ptr error;
  {
    std::lock_guard<std::mutex> lock(queue_mutex_);
    std::swap(error, error_);
  }
  if (!error) return;
  try {
    std::rethrow_exception(error);
  } catch (const DriverError& e) {
    TORCH_CHECK_WITH(OutOfMemoryError, e.status != LAZY_OUT_OF_MEMORY, e.what());
    TORCH_CHECK(false, e.what());
  }
}

void Executor::run(Job& job) {
  if (job.window)
    run_window(job);
  else
    job.action(device(index_));
  device_busy_ = true;
}

std::shared_ptr<Plan> Executor::sized_plan(const Hash& structure, const Window& window) {
  const auto found = sized_.find(structure);
  if (found == sized_.end()) return nullptr;
  for (const auto& sized : found->second)
    if (auto plan = sized->plan_for(window)) return plan;
  return nullptr;
}

std::shared_ptr<Plan> Executor::known_plan(Job& job) {
  if (auto found = plans_.find(job.key); found != plans_.end()) {
    stats().plans_hit++;
    return found->second;
  }
  if (generic_runs_.size() >= kMaxCounted) generic_runs_.clear();
  const Hash structure = job.structure();
  if (const auto generic = generic_.find(structure); generic != generic_.end()) {
    const uint32_t runs = runs_of_generic(job);
    const auto& plans = generic->second.plans;
    const auto found = runs < generic->second.runs_each ? plans.find(job.window->sizes_but(generic->second.varying)) : plans.end();
    if (found != plans.end()) {
      generic_runs_[job.key] = runs + 1;
      stats().plans_hit++;
      return found->second;
    }
  }
  const auto start = std::chrono::steady_clock::now();
  auto plan = sized_plan(structure, *job.window);
  if (plan) keep_plan(job, plan, start);
  return plan;
}

uint32_t Executor::runs_of_generic(const Job& job) const {
  const auto counted = generic_runs_.find(job.key);
  return counted == generic_runs_.end() ? 0 : counted->second;
}

std::shared_ptr<Plan> Executor::new_plan(Job& job) {
  const at::ThreadLocalStateGuard plain(of_a_new_thread());
  const auto start = std::chrono::steady_clock::now();
  std::shared_ptr<Plan> plan = compiler()(*job.window, job.alive, runs_of_generic(job));
  keep_plan(job, plan, start);
  return plan;
}

void Executor::keep_plan(const Job& job, const std::shared_ptr<Plan>& plan, std::chrono::steady_clock::time_point start) {
  const auto spent = std::chrono::steady_clock::now() - start;
  // A plan whose kernels were all there is put together, not compiled.
  if (plan->built_kernels)
    stats().plans_compiled++;
  else
    stats().plans_assembled++;
  stats().compile_ns += static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count());
  if (plan->once) return;
  if (auto sized = std::exchange(plan->sized, nullptr)) {
    if (sized_.size() >= kMaxPlans) sized_.clear();
    auto& all = sized_[job.structure()];
    all.insert(all.begin(), std::move(sized));
  }
  if (!plan->varying.empty()) {
    if (generic_.size() >= kMaxPlans) generic_.clear();
    auto& generic = generic_[job.structure()];
    if (generic.varying != plan->varying || generic.plans.size() >= kMaxPlans) generic = {plan->varying, plan->runs_each, {}};
    generic.plans[job.window->sizes_but(plan->varying)] = plan;
    generic_runs_[job.key] = runs_of_generic(job) + 1;
    return;
  }
  if (plans_.size() >= kMaxPlans) plans_.clear();
  plans_[job.key] = plan;
}

std::shared_ptr<Plan> Executor::plan_for(Job& job) {
  auto plan = known_plan(job);
  return plan ? plan : new_plan(job);
}

void Executor::run_window(Job& job) {
  auto plan = known_plan(job);
  if (plan) {
    credit_.known(*job.window, plan->runs == 1 ? plan->paid : 0);
  } else if (credit_.runs_op_by_op(job.key, *job.window)) {
    stats().windows_op_by_op++;
    for (Job& op : op_by_op(std::move(job))) {
      run_plan(*plan_for(op), *op.window);
      op = Job();
    }
    return;
  } else {
    plan = new_plan(job);
    if (!plan->once) plan->paid = credit_.made(*job.window);
  }
  run_plan(*plan, *job.window);
}

void Executor::run_plan(Plan& plan, Window& window) {
  plan.runs++;
  const auto start = std::chrono::steady_clock::now();
  execute(plan, window);
  const auto spent = std::chrono::steady_clock::now() - start;
  plan.handed_over_ns = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count());
}

// Memory is taken at the first use of a slot or piece. After its last, a piece's goes back, and the window lets go of
// a slot, whose memory goes back where nobody else sees it: the in-order queue runs its next owner later.
void Executor::execute(const Plan& plan, Window& window) {
  Device& d = device(index_);
  struct Pieces {
    const int device;
    std::vector<Block*> blocks;
    void free(uint32_t piece) {
      if (Block* block = std::exchange(blocks[piece], nullptr)) allocator(device).free(block);
    }
    ~Pieces() {  // an error left some
      for (uint32_t piece = 0; piece < blocks.size(); ++piece) free(piece);
    }
  } pieces{index_, std::vector<Block*>(plan.pieces.size())};

  if (!checks_.room(plan.checks.size())) {
    d.synchronize();
    look_at_checks();
  }
  const auto words = plan.checks.empty() ? std::pair<lazy_mem, uint64_t>{} : checks_.take(d, plan.checks, window);

  std::vector<lazy_arg> args;
  bool idle = false;  // host steps in a row wait once
  std::vector<LibraryCall> calls;  // neighbours that run side by side
  lazy_kernel called = nullptr;
  std::vector<uint32_t> numbers;  // theirs, in profiles
  std::vector<const Step*> done;  // that have run, or will have with the calls
  const auto let_go = [&] {
    for (const Step* step : done) {
      for (const uint32_t slot : step->last) window.slots[slot].reset();
      for (const uint32_t piece : step->last_pieces) pieces.free(piece);
    }
    done.clear();
  };
  const auto run_calls = [&] {
    if (calls.empty()) return;
    if (!idle) d.synchronize();
    idle = true;
    const lazy_event traced = C10_UNLIKELY(tracing) ? d.record() : nullptr;
    {
      const at::ThreadLocalStateGuard plain(of_a_new_thread());
      run_library(d, calls);
    }
    if (C10_UNLIKELY(traced != nullptr)) trace_launch(d, window.serial, called, numbers, traced);
    calls.clear();
    numbers.clear();
    let_go();
  };
  for (const Step& step : plan.steps) {
    if (step.kind != Step::kCoreOp || d.api->core_op) run_calls();  // the driver's own come after what waits
    if (step.kind == Step::kHost) {
      if (!idle) d.synchronize();
      idle = true;
      try {
        const at::ThreadLocalStateGuard plain(of_a_new_thread());
        run_host_step(window, step.node, step.fallback);
      } catch (...) {  // what follows has nothing to do with it: a script that catches the error goes on with that
        note_error(std::current_exception());
      }
      done.push_back(&step);
      let_go();
      continue;
    }
    args.resize(step.args.size());
    for (size_t i = 0; i < step.args.size(); ++i) {
      const ArgRecipe& recipe = step.args[i];
      lazy_arg& arg = args[i];
      arg = {};
      switch (recipe.kind) {
        case ArgRecipe::kSlot: {
          arg.kind = recipe.address ? LAZY_ARG_ADDRESS : LAZY_ARG_BUFFER;
          if (recipe.index == window.slots.size()) {
            std::tie(arg.mem, arg.offset) = words;
            break;
          }
          Buffer& buffer = *window.slots[recipe.index];
          buffer.allocate();
          const Block* block = buffer.block;
          arg.mem = block->mem;
          arg.offset = block->offset + window.parts[recipe.index].first;
          break;
        }
        case ArgRecipe::kTemp: {
          Block*& piece = pieces.blocks[recipe.index];
          if (!piece) piece = allocate_block(index_, plan.pieces[recipe.index], nullptr);
          arg.kind = recipe.address ? LAZY_ARG_ADDRESS : LAZY_ARG_BUFFER;
          arg.mem = piece->mem;
          arg.offset = piece->offset + recipe.bits;
          break;
        }
        case ArgRecipe::kScalar:
          arg.kind = LAZY_ARG_BYTES;
          arg.size = recipe.size;
          arg.bits = scalar_bits(window.scalars[recipe.index], plan.scalar_kinds[recipe.index], recipe.type);
          break;
        case ArgRecipe::kBytes:
          arg.kind = LAZY_ARG_BYTES;
          arg.size = recipe.size;
          arg.bits = recipe.bits;
          break;
        case ArgRecipe::kLocal:
          arg.kind = LAZY_ARG_LOCAL;
          arg.size = recipe.size;
          break;
      }
    }
    if (step.kind == Step::kLaunch) {
      idle = false;
      const lazy_event traced = C10_UNLIKELY(tracing) ? d.record() : nullptr;
      d.launch(step.kernel, step.global.data(), step.local.data(), static_cast<uint32_t>(args.size()), args.data());
      if (C10_UNLIKELY(traced != nullptr)) trace_launch(d, window.serial, step.kernel, {step.number}, traced);
      stats().kernels_launched.fetch_add(1, std::memory_order_relaxed);
    } else {
      auto tensors = step.tensors;
      for (size_t i = 0; i < tensors.size(); ++i) {
        tensors[i].mem = args[i].mem;
        tensors[i].offset += args[i].offset;
      }
      std::string attrs = step.attrs;
      if (step.args.back().kind == ArgRecipe::kScalar) {  // full(value) of a run-time scalar
        attrs = json_value(args.back().bits, step.args.back().type);
        tensors.pop_back();
      }
      const lazy_event traced = C10_UNLIKELY(tracing && d.api->core_op) ? d.record() : nullptr;
      if (d.core_op(step.name.c_str(), step.outputs, static_cast<uint32_t>(tensors.size()), tensors.data(), attrs.c_str())) {
        idle = false;
        if (C10_UNLIKELY(traced != nullptr)) trace_launch(d, window.serial, step.kernel, {step.number}, traced);
      } else {
        if (C10_UNLIKELY(traced != nullptr)) d.destroy(traced);
        LibraryCall call{step.name, std::move(tensors), std::move(attrs)};
        for (const auto& earlier : calls)
          if (!call.independent(earlier)) {
            run_calls();
            break;
          }
        calls.push_back(std::move(call));
        called = step.kernel;
        numbers.push_back(step.number);
      }
      stats().extern_calls++;
    }
    done.push_back(&step);
    if (calls.empty()) let_go();
  }
  run_calls();
  d.flush();
}

namespace {

std::array<std::unique_ptr<Executor>, 64>& all_executors() {
  static auto* all = new std::array<std::unique_ptr<Executor>, 64>;  // outlives every static
  return *all;
}

}  // namespace

Executor& executor(int device) {
  static std::mutex mutex;
  auto& slot = all_executors().at(static_cast<size_t>(device));
  if (C10_LIKELY(slot != nullptr)) return *slot;
  std::lock_guard<std::mutex> lock(mutex);
  if (!slot) slot = std::make_unique<Executor>(device);
  return *slot;
}

void stop_executors() {
  if (forked()) return;  // the thread stayed in the parent
  for (auto& executor : all_executors())
    if (executor) executor->stop();
}

}  // namespace lazy
