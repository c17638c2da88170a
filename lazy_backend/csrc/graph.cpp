// torch.accelerator.Graph: what is recorded between capture_begin and capture_end is kept instead of run, and every replay
// hands it to the executor anew. The graph holds the buffers, so they stay where they are, and what is in them stays too.
#include "graph.h"

#include <ATen/core/GraphImplInterface.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <fstream>
#include <vector>

#include "executor.h"
#include "generator.h"
#include "ops.h"
#include "stream.h"

namespace lazy {
namespace {

Job copy_of(const Job& job) {
  return {job.window ? std::make_unique<Window>(*job.window) : nullptr, job.action, job.alive, job.key};
}

// The last two scalars of a node that draws are its seed and its first counter (recorder.cpp).
void redraw(Window& window, uint64_t seed, uint64_t shift) {
  for (size_t i = 0; i < window.nodes.size(); ++i) {
    if (!window.nodes[i].op->seeded) continue;
    const size_t end = i + 1 < window.nodes.size() ? window.nodes[i + 1].scalars : window.scalars.size();
    window.scalars[end - 2] = seed;
    window.scalars[end - 1] += shift;
  }
}

class Graph final : public at::GraphImplInterface {
 public:
  explicit Graph(const at::GraphImplArgs& args) : keep_(args.keep_graph) {}
  ~Graph() override { reset(); }

  // Of whichever thread: a device has one order of work.
  void capture_begin(at::MempoolId_t pool, at::GraphCaptureMode) override {
    TORCH_CHECK(state_ == kEmpty, "this graph has been captured already; reset() it first");
    device_ = resolve_device(-1);
    static std::atomic<uint64_t> pools{0};
    pool_ = pool.first || pool.second ? pool : at::MempoolId_t{0, ++pools};
    begin_capture(device_, &jobs_);
    first_counter_ = generator().get_offset();
    state_ = kCapturing;
  }

  // Nothing has run, so nothing was drawn: the first replay draws what running would have.
  void capture_end() override {
    TORCH_CHECK(state_ == kCapturing, "capture_end() without capture_begin()");
    end_capture(device_);
    counters_ = generator().get_offset() - first_counter_;
    generator().set_offset(first_counter_);
    state_ = kCaptured;
    if (!keep_) instantiate();
  }

  void instantiate() override {
    TORCH_CHECK(state_ == kCaptured || state_ == kReady, "instantiate() without a captured graph");
    for (const Job& job : jobs_) {
      if (!job.window) continue;
      Job copy = copy_of(job);
      executor(device_).prepare(copy);
    }
    state_ = kReady;
  }

  void replay() override {
    TORCH_CHECK(state_ == kCaptured || state_ == kReady, "replay() without a captured graph");
    if (state_ == kCaptured) instantiate();
    const auto [seed, first] = generator().reserve(counters_);
    std::vector<Job> again;
    again.reserve(jobs_.size());
    for (const Job& job : jobs_) {
      again.push_back(copy_of(job));
      if (again.back().window) redraw(*again.back().window, seed, first - first_counter_);
    }
    submit_all(device_, std::move(again));
  }

  void reset() override {
    if (state_ == kCapturing) end_capture(device_);
    jobs_.clear();
    state_ = kEmpty;
  }

  at::MempoolId_t pool() const override {
    TORCH_CHECK(state_ != kEmpty, "pool() without a captured graph");
    return pool_;
  }

  void enable_debug_mode() override { debug_ = true; }

  // One line for each op: its name and the Python line.
  void debug_dump(const std::string& path) override {
    TORCH_CHECK(debug_, "debug_dump() needs enable_debug_mode() first");
    TORCH_CHECK(state_ == kCaptured || state_ == kReady, "debug_dump() without a captured graph");
    std::ofstream file(path);
    for (const Job& job : jobs_) {
      if (!job.window) {
        file << "copy, upload or event\n";
        continue;
      }
      file << "window of " << job.window->nodes.size() << " ops\n";
      for (const Node& node : job.window->nodes) file << "  " << node.op->name << "  " << describe(node.frame) << "\n";
    }
    file.flush();
    TORCH_CHECK(file.good(), "cannot write ", path);
  }

 private:
  PhiloxGenerator& generator() const {
    return *default_generator(static_cast<c10::DeviceIndex>(device_)).get<PhiloxGenerator>();
  }

  const bool keep_;
  enum { kEmpty, kCapturing, kCaptured, kReady } state_ = kEmpty;
  int device_ = 0;
  at::MempoolId_t pool_{0, 0};
  bool debug_ = false;
  std::vector<Job> jobs_;
  uint64_t first_counter_ = 0, counters_ = 0;  // of the default generator: before the capture, and taken by it
};

}  // namespace

void register_graphs() {
  at::GraphImplRegistry()->Register(
      c10::DeviceTypeName(c10::DeviceType::PrivateUse1, /*lower_case=*/false),
      [](at::GraphImplArgs args) -> std::unique_ptr<at::GraphImplInterface> { return std::make_unique<Graph>(args); });
}

}  // namespace lazy
