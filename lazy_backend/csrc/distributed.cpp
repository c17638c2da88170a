#include "distributed.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/utils/pybind.h>

#include <mutex>

namespace py = pybind11;

namespace lazy {

namespace {

using at::Tensor;
using c10::intrusive_ptr;
using c10d::Work;
using Tensors = std::vector<Tensor>;
using TensorLists = std::vector<Tensors>;

// The host tensors that stand for a collective's tensors, and what must be copied back when it is done.
class Staging {
 public:
  explicit Staging(c10d::ReduceOp* reduce = nullptr, int ranks = 1) {
    if (reduce != nullptr && *reduce == c10d::ReduceOp::AVG) {  // gloo has no mean
      *reduce = c10d::ReduceOp::SUM;
      divisor_ = ranks;
    }
  }

  Tensor input(const Tensor& device) { return device.detach().cpu().contiguous(); }
  Tensor output(const Tensor& device) { return keep(device, at::empty(device.sizes(), device.options().device(at::kCPU))); }
  Tensor in_place(const Tensor& device) { return keep(device, input(device)); }

  Tensors inputs(const Tensors& list) { return map(list, &Staging::input); }
  Tensors outputs(const Tensors& list) { return map(list, &Staging::output); }
  Tensors in_places(const Tensors& list) { return map(list, &Staging::in_place); }
  TensorLists inputs(const TensorLists& lists) {
    TensorLists host;
    for (const Tensors& list : lists) host.push_back(inputs(list));
    return host;
  }
  TensorLists outputs(const TensorLists& lists) {
    TensorLists host;
    for (const Tensors& list : lists) host.push_back(outputs(list));
    return host;
  }

  // All outputs in one tensor, and the number of elements of each.
  Tensor flat_output(const Tensors& list, std::vector<int64_t>& sizes) {
    int64_t total = 0;
    for (const Tensor& t : list) total += sizes.emplace_back(t.numel());
    const Tensor flat = at::empty({total}, list[0].options().device(at::kCPU));
    const Tensors parts = flat.split_with_sizes(sizes);
    for (size_t i = 0; i < list.size(); ++i) keep(list[i], parts[i].view(list[i].sizes()));
    return flat;
  }
  Tensor flat_input(const Tensors& list, std::vector<int64_t>& sizes) {
    Tensors flat;
    for (const Tensor& t : inputs(list)) sizes.push_back(flat.emplace_back(t.flatten()).numel());
    return at::cat(flat);
  }

  void finish() {
    at::AutoDispatchBelowADInplaceOrView raw;  // a collective is no op of autograd
    for (auto& [device, host] : pairs_) {
      device.copy_(divisor_ == 1 ? host : host.div(divisor_));
    }
  }

  Tensors results() const {
    Tensors devices;
    for (const auto& pair : pairs_) devices.push_back(pair.first);
    return devices;
  }

 private:
  Tensor keep(const Tensor& device, Tensor host) {
    pairs_.emplace_back(device, host);
    return host;
  }
  Tensors map(const Tensors& list, Tensor (Staging::*one)(const Tensor&)) {
    Tensors host;
    for (const Tensor& t : list) host.push_back((this->*one)(t));
    return host;
  }

  std::vector<std::pair<Tensor, Tensor>> pairs_;
  int divisor_ = 1;
};

class StagedWork final : public Work {
 public:
  StagedWork(intrusive_ptr<Work> inner, Staging staging) : inner_(std::move(inner)), staging_(std::move(staging)) {}

  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  Tensors result() override { return staging_.results(); }
  void synchronize() override { wait(kNoTimeout); }
  void abort() override { inner_->abort(); }

  bool wait(std::chrono::milliseconds timeout) override {
    const bool done = inner_->wait(timeout);
    finish();
    return done;
  }

  intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto self = intrusive_ptr<StagedWork>::reclaim_copy(this);
    return inner_->getFuture()->then(
        [self](c10::ivalue::Future& done) {
          if (done.hasError()) std::rethrow_exception(done.exception_ptr());
          self->finish();
          return c10::IValue(self->staging_.results());
        },
        c10::ListType::ofTensors());
  }

 private:
  void finish() {
    std::call_once(finished_, [this] { staging_.finish(); });
  }

  intrusive_ptr<Work> inner_;
  Staging staging_;
  std::once_flag finished_;
};

class StagedBackend final : public c10d::Backend {
 public:
  explicit StagedBackend(intrusive_ptr<Backend> inner)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}

  const std::string getBackendName() const override { return "lazy"; }
  void setSequenceNumberForGroup() override { inner_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return inner_->getSequenceNumberForGroup(); }
  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }

  intrusive_ptr<Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    Staging s;
    auto host = s.in_places(tensors);
    return start(inner_->broadcast(host, opts), s);
  }
  intrusive_ptr<Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& given) override {
    auto opts = given;
    Staging s(&opts.reduceOp, size_);
    auto host = s.in_places(tensors);
    return start(inner_->allreduce(host, opts), s);
  }
  intrusive_ptr<Work> allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& given) override {
    auto opts = given;
    Staging s(&opts.reduceOp, size_);
    auto host = s.in_places(tensors);
    return start(inner_->allreduce_coalesced(host, opts), s);
  }
  intrusive_ptr<Work> reduce(Tensors& tensors, const c10d::ReduceOptions& given) override {
    auto opts = given;
    Staging s(&opts.reduceOp, size_);
    auto host = s.in_places(tensors);
    return start(inner_->reduce(host, opts), s);
  }
  intrusive_ptr<Work> allgather(TensorLists& to, Tensors& from, const c10d::AllgatherOptions& opts) override {
    Staging s;
    auto host_to = s.outputs(to);
    auto host_from = s.inputs(from);
    return start(inner_->allgather(host_to, host_from, opts), s);
  }
  intrusive_ptr<Work> allgather_coalesced(TensorLists& to, Tensors& from, const c10d::AllgatherOptions& opts) override {
    Staging s;
    auto host_to = s.outputs(to);
    auto host_from = s.inputs(from);
    return start(inner_->allgather_coalesced(host_to, host_from, opts), s);
  }
  intrusive_ptr<Work> _allgather_base(Tensor& to, Tensor& from, const c10d::AllgatherOptions& opts) override {
    Staging s;
    auto host_to = s.output(to);
    auto host_from = s.input(from);
    return start(inner_->_allgather_base(host_to, host_from, opts), s);
  }
  intrusive_ptr<Work> allgather_into_tensor_coalesced(Tensors& to, Tensors& from,
                                                      const c10d::AllgatherOptions& opts) override {
    Staging s;
    auto host_to = s.outputs(to);
    auto host_from = s.inputs(from);
    return start(inner_->allgather_into_tensor_coalesced(host_to, host_from, opts), s);
  }
  intrusive_ptr<Work> gather(TensorLists& to, Tensors& from, const c10d::GatherOptions& opts) override {
    Staging s;
    auto host_to = s.outputs(to);
    auto host_from = s.inputs(from);
    return start(inner_->gather(host_to, host_from, opts), s);
  }
  intrusive_ptr<Work> scatter(Tensors& to, TensorLists& from, const c10d::ScatterOptions& opts) override {
    Staging s;
    auto host_to = s.outputs(to);
    auto host_from = s.inputs(from);
    return start(inner_->scatter(host_to, host_from, opts), s);
  }
  intrusive_ptr<Work> reduce_scatter(Tensors& to, TensorLists& from, const c10d::ReduceScatterOptions& given) override {
    auto opts = given;
    Staging s(&opts.reduceOp, size_);
    auto host_to = s.outputs(to);
    auto host_from = s.inputs(from);
    return start(inner_->reduce_scatter(host_to, host_from, opts), s);
  }
  intrusive_ptr<Work> _reduce_scatter_base(Tensor& to, Tensor& from, const c10d::ReduceScatterOptions& given) override {
    auto opts = given;
    Staging s(&opts.reduceOp, size_);
    auto host_to = s.output(to);
    auto host_from = s.input(from);
    return start(inner_->_reduce_scatter_base(host_to, host_from, opts), s);
  }
  intrusive_ptr<Work> reduce_scatter_tensor_coalesced(Tensors& to, Tensors& from,
                                                      const c10d::ReduceScatterOptions& given) override {
    auto opts = given;
    Staging s(&opts.reduceOp, size_);
    auto host_to = s.outputs(to);
    auto host_from = s.inputs(from);
    return start(inner_->reduce_scatter_tensor_coalesced(host_to, host_from, opts), s);
  }
  intrusive_ptr<Work> alltoall_base(Tensor& to, Tensor& from, std::vector<int64_t>& to_sizes,
                                    std::vector<int64_t>& from_sizes, const c10d::AllToAllOptions& opts) override {
    Staging s;
    auto host_to = s.output(to);
    auto host_from = s.input(from);
    return start(inner_->alltoall_base(host_to, host_from, to_sizes, from_sizes, opts), s);
  }
  // gloo exchanges one tensor only.
  intrusive_ptr<Work> alltoall(Tensors& to, Tensors& from, const c10d::AllToAllOptions& opts) override {
    Staging s;
    std::vector<int64_t> to_sizes, from_sizes;
    auto host_to = s.flat_output(to, to_sizes);
    auto host_from = s.flat_input(from, from_sizes);
    return start(inner_->alltoall_base(host_to, host_from, to_sizes, from_sizes, opts), s);
  }
  intrusive_ptr<Work> send(Tensors& tensors, int to, int tag) override {
    Staging s;
    auto host = s.inputs(tensors);
    return start(inner_->send(host, to, tag), s);
  }
  intrusive_ptr<Work> recv(Tensors& tensors, int from, int tag) override {
    Staging s;
    auto host = s.outputs(tensors);
    return start(inner_->recv(host, from, tag), s);
  }
  intrusive_ptr<Work> recvAnysource(Tensors& tensors, int tag) override {
    Staging s;
    auto host = s.outputs(tensors);
    return start(inner_->recvAnysource(host, tag), s);
  }
  intrusive_ptr<Work> barrier(const c10d::BarrierOptions& opts) override { return inner_->barrier(opts); }

 private:
  static intrusive_ptr<Work> start(intrusive_ptr<Work> work, Staging& staging) {
    return c10::make_intrusive<StagedWork>(std::move(work), std::move(staging));
  }

  intrusive_ptr<Backend> inner_;
};

}  // namespace

void init_distributed(py::module_& m) {
  m.def(
      "staged_collectives",
      [](const intrusive_ptr<c10d::Backend>& inner) -> intrusive_ptr<c10d::Backend> {
        return c10::make_intrusive<StagedBackend>(inner);
      },
      "A c10d backend for lazy tensors over one for host tensors.");
}

}  // namespace lazy
